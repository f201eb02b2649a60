#include "tests/plugin_harness.h"

#include <dlfcn.h>

#include <cstddef>
#include <cstring>
#include <stdexcept>

namespace andrea::tests {

namespace {

// Handed over as the logger finder. All zeros: a plugin that calls anything of it crashes, and is seen.
alignas(std::max_align_t) unsigned char untouchable[256];

}  // namespace

PluginLibrary::PluginLibrary(std::string const& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL))
{
  if (handle_ == nullptr) {
    throw std::runtime_error(dlerror());
  }
  void* const get_creators = dlsym(handle_, "getCreators");
  void* const set_logger_finder = dlsym(handle_, "setLoggerFinder");
  if (get_creators == nullptr || set_logger_finder == nullptr) {
    dlclose(handle_);
    throw std::runtime_error(path + " lacks getCreators or setLoggerFinder");
  }
  using GetCreators = nvinfer1::IPluginCreatorInterface* const* (*)(std::int32_t&);
  auto const creators_of = reinterpret_cast<GetCreators>(get_creators);
  using SetLoggerFinder = void (*)(nvinfer1::ILoggerFinder*);
  auto const hand_over = reinterpret_cast<SetLoggerFinder>(set_logger_finder);
  hand_over(reinterpret_cast<nvinfer1::ILoggerFinder*>(untouchable));

  std::int32_t count = 0;
  nvinfer1::IPluginCreatorInterface* const* const found = creators_of(count);
  for (std::int32_t i = 0; i < count; ++i) {
    if (std::strcmp(found[i]->getInterfaceInfo().kind, "PLUGIN CREATOR_V3ONE") == 0) {
      creators_.push_back(static_cast<nvinfer1::IPluginCreatorV3One*>(found[i]));
    }
  }
}

PluginLibrary::~PluginLibrary() { dlclose(handle_); }

Plugin plugin_from_pointer(nvinfer1::IPluginV3* plugin)
{
  using nvinfer1::PluginCapabilityType;
  if (plugin == nullptr) {
    return {};
  }
  Plugin result;
  result.owner.reset(plugin);
  result.core =
      static_cast<nvinfer1::IPluginV3OneCore*>(plugin->getCapabilityInterface(PluginCapabilityType::kCORE));
  result.build =
      static_cast<nvinfer1::IPluginV3OneBuild*>(plugin->getCapabilityInterface(PluginCapabilityType::kBUILD));
  result.runtime =
      static_cast<nvinfer1::IPluginV3OneRuntime*>(plugin->getCapabilityInterface(PluginCapabilityType::kRUNTIME));
  if (result.core == nullptr || result.build == nullptr || result.runtime == nullptr) {
    return {};
  }
  return result;
}

nvinfer1::Dims dims_from_extents(std::vector<std::int64_t> const& extents)
{
  nvinfer1::Dims dims{};
  dims.nbDims = static_cast<std::int32_t>(extents.size());
  for (std::size_t i = 0; i < extents.size(); ++i) {
    dims.d[i] = extents[i];
  }
  return dims;
}

nvinfer1::PluginTensorDesc tensor_desc(nvinfer1::DataType type, nvinfer1::Dims const& dims)
{
  nvinfer1::PluginTensorDesc desc{};
  desc.dims = dims;
  desc.type = type;
  desc.format = nvinfer1::TensorFormat::kLINEAR;
  desc.scale = -1.0F;
  return desc;
}

}  // namespace andrea::tests
