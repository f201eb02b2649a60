// The harness for callers in other languages: load a plugin library, and run its plugin on device memory.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "tests/plugin_harness.h"

#define ANDREA_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// A library, and one attached plugin of it.
struct Session {
  andrea::tests::PluginLibrary library;
  andrea::tests::Plugin attached;

  explicit Session(char const* path) : library(path) {}
};

}  // namespace

// A session with the library's plugin `name`, or null with the reason in `reason` (at most `capacity` bytes with the
// final zero).
ANDREA_EXPORT void* andrea_harness_open(char const* library, char const* name, char* reason, std::int64_t capacity);
ANDREA_EXPORT void andrea_harness_close(void* session);
// Runs the plugin on `stream`: 0, or the status enqueue returned. `type` is TensorRT's DataType.
ANDREA_EXPORT std::int32_t andrea_harness_run(void* session, std::int32_t type, std::int64_t const* extents,
                                              std::int32_t rank, void const* input, void* output, void* stream);

void* andrea_harness_open(char const* library, char const* name, char* reason, std::int64_t capacity)
{
  try {
    auto session = std::make_unique<Session>(library);
    auto const& creators = session->library.creators();
    auto const found = std::find_if(creators.begin(), creators.end(), [name](auto const* creator) {
      return std::strcmp(creator->getPluginName(), name) == 0;
    });
    andrea::tests::Plugin const plugin = andrea::tests::plugin_from_pointer(
        found == creators.end() ? nullptr
                                : (*found)->createPlugin("harness", nullptr, nvinfer1::TensorRTPhase::kRUNTIME));
    if (plugin.owner != nullptr) {
      session->attached = andrea::tests::plugin_from_pointer(plugin.runtime->attachToContext(nullptr));
    }
    if (session->attached.owner == nullptr) {
      (void)std::snprintf(reason, static_cast<std::size_t>(capacity), "%s gives no plugin %s", library, name);
      return nullptr;
    }
    return session.release();
  } catch (std::exception const& error) {
    (void)std::snprintf(reason, static_cast<std::size_t>(capacity), "%s", error.what());
    return nullptr;
  }
}

void andrea_harness_close(void* session) { delete static_cast<Session*>(session); }

std::int32_t andrea_harness_run(void* session, std::int32_t type, std::int64_t const* extents, std::int32_t rank,
                                void const* input, void* output, void* stream)
{
  nvinfer1::IPluginV3OneRuntime& runtime = *static_cast<Session*>(session)->attached.runtime;
  nvinfer1::PluginTensorDesc const desc = andrea::tests::tensor_desc(
      static_cast<nvinfer1::DataType>(type),
      andrea::tests::dims_from_extents(std::vector<std::int64_t>(extents, extents + rank)));
  std::int32_t const status = runtime.onShapeChange(&desc, 1, &desc, 1);
  if (status != 0) {
    return status;
  }
  void const* const inputs[] = {input};
  void* const outputs[] = {output};
  return runtime.enqueue(&desc, &desc, inputs, outputs, nullptr, static_cast<cudaStream_t>(stream));
}
