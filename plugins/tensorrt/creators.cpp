// The two functions TensorRT looks up in a plugin library, and the list of creators they hand over: one an operator.
#include <cstddef>
#include <cstdint>
#include <utility>

#include "andrea_operators.h"
#include "tensorrt/elementwise_plugin.h"

#define ANDREA_EXPORT extern "C" __attribute__((visibility("default")))

ANDREA_EXPORT nvinfer1::IPluginCreatorInterface* const* getCreators(std::int32_t& num_creators);
ANDREA_EXPORT void setLoggerFinder(nvinfer1::ILoggerFinder* finder);

namespace andrea {
namespace {

constexpr std::size_t kNumOperators = sizeof kOperators / sizeof kOperators[0];

template <std::size_t... kIndices>
nvinfer1::IPluginCreatorInterface* const* creators(std::index_sequence<kIndices...> /*all*/) noexcept
{
  static ElementwiseCreator owned[] = {ElementwiseCreator(kOperators[kIndices])...};
  static nvinfer1::IPluginCreatorInterface* const listed[] = {&owned[kIndices]...};
  return listed;
}

}  // namespace
}  // namespace andrea

nvinfer1::IPluginCreatorInterface* const* getCreators(std::int32_t& num_creators)
{
  num_creators = static_cast<std::int32_t>(andrea::kNumOperators);
  return andrea::creators(std::make_index_sequence<andrea::kNumOperators>());
}

// TensorRT requires the function. The logger itself is never called: its layout is not that of a versioned interface
// before TensorRT 11, so one library cannot call it in both. Errors are status codes, which TensorRT reports.
void setLoggerFinder(nvinfer1::ILoggerFinder* /*finder*/) {}
