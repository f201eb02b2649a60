// The two functions TensorRT looks up in a plugin library, and the list of creators they hand over.
#include "common/creators.h"

#include <cstdint>

#define ANDREA_EXPORT extern "C" __attribute__((visibility("default")))

ANDREA_EXPORT nvinfer1::IPluginCreatorInterface* const* getCreators(std::int32_t& num_creators);
ANDREA_EXPORT void setLoggerFinder(nvinfer1::ILoggerFinder* finder);

nvinfer1::IPluginCreatorInterface* const* getCreators(std::int32_t& num_creators)
{
  static nvinfer1::IPluginCreatorInterface* const creators[] = {andrea::gelu_creator()};
  num_creators = static_cast<std::int32_t>(sizeof creators / sizeof creators[0]);
  return creators;
}

// TensorRT requires the function. The logger itself is never called: its layout is not that of a versioned interface
// before TensorRT 11, so one library cannot call it in both. Errors are status codes, which TensorRT reports.
void setLoggerFinder(nvinfer1::ILoggerFinder* /*finder*/) {}
