// Plays TensorRT's part towards a plugin library, through the plugin ABI alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tensorrt/tensorrt.h"

namespace andrea::tests {

// A plugin library that was loaded, and its V3 creators.
class PluginLibrary {
 public:
  // Throws std::runtime_error with the reason if the library cannot be loaded or lacks one of its two functions.
  explicit PluginLibrary(std::string const& path);
  PluginLibrary(PluginLibrary const&) = delete;
  PluginLibrary& operator=(PluginLibrary const&) = delete;
  ~PluginLibrary();

  [[nodiscard]] std::vector<nvinfer1::IPluginCreatorV3One*> const& creators() const { return creators_; }

 private:
  void* handle_ = nullptr;
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
