// Errors go to TensorRT's own logger, when TensorRT gave the library one. Nothing is ever printed.
#pragma once

#include "common/tensorrt.h"

namespace andrea {

// Remembers where TensorRT's logger is found; null forgets it.
void set_logger_finder(nvinfer1::ILoggerFinder* finder) noexcept;

// Logs one line, "<operator>: <what>[: <detail>]", as an error. Silent without a logger.
void log_error(char const* op_name, char const* what, char const* detail = nullptr) noexcept;

}  // namespace andrea
