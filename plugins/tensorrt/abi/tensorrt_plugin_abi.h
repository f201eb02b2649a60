// The part of TensorRT's binary interface that a V3 plugin library meets, declared for builds without NVIDIA's headers.
//
// Names, method order, enumerator values and layouts are facts of the interface (README.md beside this file says
// from which versions they were taken and why they stay). Nothing is declared that the plugins here do not use or
// override. Every interface begins, in vtable order, with getAPILanguage, getInterfaceInfo and the destructors.
#pragma once

#include <cstddef>
#include <cstdint>

using cudaStream_t = struct CUstream_st*;

namespace nvinfer1 {

using AsciiChar = char;

// --- values ---------------------------------------------------------------------------------------------------------

enum class APILanguage : std::int32_t { kCPP = 0, kPYTHON = 1 };
enum class TensorRTPhase : std::int32_t { kBUILD = 0, kRUNTIME = 1 };
enum class PluginCapabilityType : std::int32_t { kCORE = 0, kBUILD = 1, kRUNTIME = 2 };
enum class DataType : std::int32_t { kFLOAT = 0, kHALF = 1, kINT8 = 2, kINT32 = 3, kBOOL = 4, kBF16 = 7, kINT64 = 8 };
enum class TensorFormat : std::int32_t { kLINEAR = 0 };
enum class PluginFieldType : std::int32_t { kFLOAT32 = 1, kINT32 = 5, kCHAR = 6, kUNKNOWN = 8 };

struct InterfaceInfo {
  char const* kind;
  std::int32_t major;
  std::int32_t minor;
};

struct Dims64 {
  static constexpr std::int32_t MAX_DIMS = 8;
  std::int32_t nbDims;
  std::int64_t d[MAX_DIMS];
};
using Dims = Dims64;

struct PluginTensorDesc {
  Dims dims;
  DataType type;
  TensorFormat format;
  float scale;
};

struct DynamicPluginTensorDesc {
  PluginTensorDesc desc;
  Dims min;
  Dims max;
  Dims opt;
};

struct PluginField {
  AsciiChar const* name;
  void const* data;
  PluginFieldType type;
  std::int32_t length;
};

struct PluginFieldCollection {
  std::int32_t nbFields;
  PluginField const* fields;
};

// Symbolic extents are handed from input to output as they are, never looked into.
class IDimensionExpr;
class IExprBuilder;
class IPluginResourceContext;

struct DimsExprs {
  std::int32_t nbDims;
  IDimensionExpr const* d[Dims::MAX_DIMS];
};

// --- interfaces -----------------------------------------------------------------------------------------------------

class IVersionedInterface {
 public:
  virtual APILanguage getAPILanguage() const noexcept { return APILanguage::kCPP; }
  virtual InterfaceInfo getInterfaceInfo() const noexcept = 0;
  virtual ~IVersionedInterface() noexcept = default;
};

namespace v_1_0 {

// Named in setLoggerFinder's signature, never called: its layout differs between TensorRT 10 and 11.
class ILoggerFinder;

class IPluginCapability : public IVersionedInterface {};
class IPluginCreatorInterface : public IVersionedInterface {};

class IPluginV3 : public IVersionedInterface {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN", 1, 0}; }
  virtual IPluginCapability* getCapabilityInterface(PluginCapabilityType type) noexcept = 0;
  virtual IPluginV3* clone() noexcept = 0;
};

class IPluginV3OneCore : public IPluginCapability {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_CORE", 1, 0}; }
  virtual AsciiChar const* getPluginName() const noexcept = 0;
  virtual AsciiChar const* getPluginVersion() const noexcept = 0;
  virtual AsciiChar const* getPluginNamespace() const noexcept = 0;
};

class IPluginV3OneBuild : public IPluginCapability {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_BUILD", 1, 0}; }
  virtual std::int32_t configurePlugin(DynamicPluginTensorDesc const* inputs, std::int32_t num_inputs,
                                       DynamicPluginTensorDesc const* outputs, std::int32_t num_outputs) noexcept = 0;
  virtual std::int32_t getOutputDataTypes(DataType* output_types, std::int32_t num_outputs,
                                          DataType const* input_types, std::int32_t num_inputs) const noexcept = 0;
  virtual std::int32_t getOutputShapes(DimsExprs const* inputs, std::int32_t num_inputs,
                                       DimsExprs const* shape_inputs, std::int32_t num_shape_inputs,
                                       DimsExprs* outputs, std::int32_t num_outputs,
                                       IExprBuilder& expressions) noexcept = 0;
  virtual bool supportsFormatCombination(std::int32_t position, DynamicPluginTensorDesc const* tensors,
                                         std::int32_t num_inputs, std::int32_t num_outputs) noexcept = 0;
  virtual std::int32_t getNbOutputs() const noexcept = 0;
  virtual std::size_t getWorkspaceSize(DynamicPluginTensorDesc const* /*inputs*/, std::int32_t /*num_inputs*/,
                                       DynamicPluginTensorDesc const* /*outputs*/,
                                       std::int32_t /*num_outputs*/) const noexcept
  {
    return 0;
  }
  virtual std::int32_t getValidTactics(std::int32_t* /*tactics*/, std::int32_t /*num_tactics*/) noexcept
  {
    return 0;
  }
  virtual std::int32_t getNbTactics() noexcept { return 0; }
  virtual char const* getTimingCacheID() noexcept { return nullptr; }
  virtual std::int32_t getFormatCombinationLimit() noexcept { return 100; }
  virtual char const* getMetadataString() noexcept { return nullptr; }
};

class IPluginV3OneRuntime : public IPluginCapability {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_RUNTIME", 1, 0}; }
  virtual std::int32_t setTactic(std::int32_t /*tactic*/) noexcept { return 0; }
  virtual std::int32_t onShapeChange(PluginTensorDesc const* inputs, std::int32_t num_inputs,
                                     PluginTensorDesc const* outputs, std::int32_t num_outputs) noexcept = 0;
  virtual std::int32_t enqueue(PluginTensorDesc const* input_descs, PluginTensorDesc const* output_descs,
                               void const* const* inputs, void* const* outputs, void* workspace,
                               cudaStream_t stream) noexcept = 0;
  virtual IPluginV3* attachToContext(IPluginResourceContext* context) noexcept = 0;
  virtual PluginFieldCollection const* getFieldsToSerialize() noexcept = 0;
};

class IPluginCreatorV3One : public IPluginCreatorInterface {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN CREATOR_V3ONE", 1, 0}; }
  virtual IPluginV3* createPlugin(AsciiChar const* name, PluginFieldCollection const* fields,
                                  TensorRTPhase phase) noexcept = 0;
  virtual PluginFieldCollection const* getFieldNames() noexcept = 0;
  virtual AsciiChar const* getPluginName() const noexcept = 0;
  virtual AsciiChar const* getPluginVersion() const noexcept = 0;
  virtual AsciiChar const* getPluginNamespace() const noexcept = 0;
};

}  // namespace v_1_0

using v_1_0::IPluginCapability;
using v_1_0::IPluginCreatorInterface;
using v_1_0::IPluginV3;
using v_1_0::IPluginV3OneCore;
using v_1_0::IPluginV3OneBuild;
using v_1_0::IPluginV3OneRuntime;
using v_1_0::IPluginCreatorV3One;
using v_1_0::ILoggerFinder;

}  // namespace nvinfer1
