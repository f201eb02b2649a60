// Plays TensorRT's part towards a plugin library, through the plugin ABI alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/tensorrt.h"

namespace andrea::tests {

// Collects what a plugin logs, as TensorRT's logger would.
class LogCollector final : public nvinfer1::ILogger {
 public:
  void log(Severity severity, nvinfer1::AsciiChar const* message) noexcept override;
  [[nodiscard]] std::vector<std::string> const& lines() const { return lines_; }
  void clear() { lines_.clear(); }

 private:
  std::vector<std::string> lines_;
};

class LogFinder final : public nvinfer1::ILoggerFinder {
 public:
  explicit LogFinder(nvinfer1::ILogger& logger) : logger_(&logger) {}
  ~LogFinder() override = default;
  nvinfer1::ILogger* findLogger() override;
  // From now on findLogger throws, as foreign code may.
  void start_throwing() { throws_ = true; }

 private:
  nvinfer1::ILogger* logger_;
  bool throws_ = false;
};

// A plugin library that was loaded, and its V3 creators.
class PluginLibrary {
 public:
  // Throws std::runtime_error with the reason if the library cannot be loaded or lacks one of its two functions.
  explicit PluginLibrary(std::string const& path);
  PluginLibrary(PluginLibrary const&) = delete;
  PluginLibrary& operator=(PluginLibrary const&) = delete;
  ~PluginLibrary();

  [[nodiscard]] std::vector<nvinfer1::IPluginCreatorV3One*> const& creators() const { return creators_; }
  LogCollector& log() { return log_; }
  LogFinder& log_finder() { return *log_finder_; }

 private:
  LogCollector log_;
  std::unique_ptr<LogFinder> log_finder_;
  void* handle_ = nullptr;
  void (*set_logger_finder_)(nvinfer1::ILoggerFinder*) = nullptr;
  std::vector<nvinfer1::IPluginCreatorV3One*> creators_;
};

// A plugin and its three capabilities.
struct Plugin {
  std::unique_ptr<nvinfer1::IPluginV3> owner;
  nvinfer1::IPluginV3OneCore* core = nullptr;
  nvinfer1::IPluginV3OneBuild* build = nullptr;
  nvinfer1::IPluginV3OneRuntime* runtime = nullptr;
};

// Takes ownership. Empty if `plugin` is null or lacks a capability.
Plugin plugin_from_pointer(nvinfer1::IPluginV3* plugin);

nvinfer1::Dims dims_from_extents(std::vector<std::int64_t> const& extents);

// A linear tensor of this shape and type.
nvinfer1::PluginTensorDesc tensor_desc(nvinfer1::DataType type, nvinfer1::Dims const& dims);

}  // namespace andrea::tests
