// The TensorRT side of an elementwise operator, written once: one input, one output of the same shape and type.
//
// An operator is one row (ElementwiseOp) and a launcher. Owns no maths and no kernel.
#pragma once

#include <cstdint>

#include "common/cuda_api.h"
#include "common/elementwise_launcher.h"
#include "common/storage.h"
#include "tensorrt/status.h"
#include "tensorrt/tensorrt.h"

namespace andrea {

// An operator's row: its op.json, as CMake writes it into andrea_operators.h, and its launcher.
struct ElementwiseOp {
  char const* name;
  char const* version;
  char const* plugin_namespace;
  StorageType storage_types[3];
  std::int32_t num_storage_types;
  ElementwiseLauncher launch;
};

class ElementwisePlugin final : public nvinfer1::IPluginV3,
                                public nvinfer1::IPluginV3OneCore,
                                public nvinfer1::IPluginV3OneBuild,
                                public nvinfer1::IPluginV3OneRuntime {
 public:
  // `op` must outlive the plugin: rows are constants of the library.
  explicit ElementwisePlugin(ElementwiseOp const& op) noexcept : op_(&op) {}

  // IPluginV3
  nvinfer1::IPluginCapability* getCapabilityInterface(nvinfer1::PluginCapabilityType type) noexcept override;
  nvinfer1::IPluginV3* clone() noexcept override;

  // IPluginV3OneCore
  nvinfer1::AsciiChar const* getPluginName() const noexcept override { return op_->name; }
  nvinfer1::AsciiChar const* getPluginVersion() const noexcept override { return op_->version; }
  nvinfer1::AsciiChar const* getPluginNamespace() const noexcept override { return op_->plugin_namespace; }

  // IPluginV3OneBuild
  std::int32_t configurePlugin(nvinfer1::DynamicPluginTensorDesc const* inputs, std::int32_t num_inputs,
                               nvinfer1::DynamicPluginTensorDesc const* outputs,
                               std::int32_t num_outputs) noexcept override;
  std::int32_t getOutputDataTypes(nvinfer1::DataType* output_types, std::int32_t num_outputs,
                                  nvinfer1::DataType const* input_types,
                                  std::int32_t num_inputs) const noexcept override;
  std::int32_t getOutputShapes(nvinfer1::DimsExprs const* inputs, std::int32_t num_inputs,
                               nvinfer1::DimsExprs const* shape_inputs, std::int32_t num_shape_inputs,
                               nvinfer1::DimsExprs* outputs, std::int32_t num_outputs,
                               nvinfer1::IExprBuilder& expressions) noexcept override;
  bool supportsFormatCombination(std::int32_t position, nvinfer1::DynamicPluginTensorDesc const* tensors,
                                 std::int32_t num_inputs, std::int32_t num_outputs) noexcept override;
  std::int32_t getNbOutputs() const noexcept override { return 1; }

  // IPluginV3OneRuntime
  std::int32_t onShapeChange(nvinfer1::PluginTensorDesc const* inputs, std::int32_t num_inputs,
                             nvinfer1::PluginTensorDesc const* outputs, std::int32_t num_outputs) noexcept override;
  std::int32_t enqueue(nvinfer1::PluginTensorDesc const* input_descs, nvinfer1::PluginTensorDesc const* output_descs,
                       void const* const* inputs, void* const* outputs, void* workspace,
                       cudaStream_t stream) noexcept override;
  nvinfer1::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext* context) noexcept override;
  nvinfer1::PluginFieldCollection const* getFieldsToSerialize() noexcept override;

 private:
  ElementwiseOp const* op_;
  DeviceLimits limits_{};
  // Why limits_ is not known. An attached plugin has asked; an unattached one has not.
  Status limits_status_ = kNotReady;
};

class ElementwiseCreator final : public nvinfer1::IPluginCreatorV3One {
 public:
  explicit ElementwiseCreator(ElementwiseOp const& op) noexcept : op_(&op) {}

  // A plugin of the row's operator. Null if `fields` names any: the operator takes no attributes.
  nvinfer1::IPluginV3* createPlugin(nvinfer1::AsciiChar const* name, nvinfer1::PluginFieldCollection const* fields,
                                    nvinfer1::TensorRTPhase phase) noexcept override;
  nvinfer1::PluginFieldCollection const* getFieldNames() noexcept override;
  nvinfer1::AsciiChar const* getPluginName() const noexcept override { return op_->name; }
  nvinfer1::AsciiChar const* getPluginVersion() const noexcept override { return op_->version; }
  nvinfer1::AsciiChar const* getPluginNamespace() const noexcept override { return op_->plugin_namespace; }

 private:
  ElementwiseOp const* op_;
};

}  // namespace andrea
