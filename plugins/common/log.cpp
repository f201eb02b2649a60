#include "common/log.h"

#include <atomic>
#include <cstdio>

namespace andrea {
namespace {

// The one piece of state of the library: TensorRT hands it over once, when it loads the library.
std::atomic<nvinfer1::ILoggerFinder*> logger_finder{nullptr};

}  // namespace

void set_logger_finder(nvinfer1::ILoggerFinder* finder) noexcept { logger_finder.store(finder); }

void log_error(char const* op_name, char const* what, char const* detail) noexcept
{
  nvinfer1::ILoggerFinder* const finder = logger_finder.load();
  if (finder == nullptr) {
    return;
  }
  nvinfer1::ILogger* logger = nullptr;
  try {
    logger = finder->findLogger();  // foreign code, not declared noexcept
  } catch (...) {
    return;  // a logger that cannot be found must not turn an error code into a crash
  }
  if (logger == nullptr) {
    return;
  }
  char line[256];
  std::snprintf(line, sizeof line, "%s: %s%s%s", op_name, what, detail == nullptr ? "" : ": ",
                detail == nullptr ? "" : detail);
  logger->log(nvinfer1::ILogger::Severity::kERROR, line);
}

}  // namespace andrea
