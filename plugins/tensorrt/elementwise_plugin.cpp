#include "tensorrt/elementwise_plugin.h"

#include <new>

namespace andrea {
namespace {

bool storage_from_data_type(nvinfer1::DataType type, StorageType& storage) noexcept
{
  switch (type) {
    case nvinfer1::DataType::kFLOAT:
      storage = StorageType::kFp32;
      return true;
    case nvinfer1::DataType::kHALF:
      storage = StorageType::kFp16;
      return true;
    case nvinfer1::DataType::kBF16:
      storage = StorageType::kBf16;
      return true;
    default:
      return false;
  }
}

bool takes(ElementwiseOp const& op, nvinfer1::DataType type) noexcept
{
  StorageType storage{};
  if (!storage_from_data_type(type, storage)) {
    return false;
  }
  for (std::int32_t i = 0; i < op.num_storage_types; ++i) {
    if (op.storage_types[i] == storage) {
      return true;
    }
  }
  return false;
}

bool takes(ElementwiseOp const& op, nvinfer1::PluginTensorDesc const& tensor) noexcept
{
  return tensor.format == nvinfer1::TensorFormat::kLINEAR && takes(op, tensor.type);
}

// The number of elements; 1 for rank 0, and -1 where an extent is not a size.
std::int64_t num_elements(nvinfer1::Dims const& dims) noexcept
{
  if (dims.nbDims < 0 || dims.nbDims > nvinfer1::Dims::MAX_DIMS) {
    return -1;
  }
  std::int64_t count = 1;
  for (std::int32_t i = 0; i < dims.nbDims; ++i) {
    if (dims.d[i] < 0) {
      return -1;
    }
    count *= dims.d[i];
  }
  return count;
}

// No attributes and no state: the same empty list names the fields a creator reads and those a plugin serialises.
nvinfer1::PluginFieldCollection const* no_fields() noexcept
{
  static nvinfer1::PluginFieldCollection const fields{0, nullptr};
  return &fields;
}

cudaError_t query_limits(DeviceLimits& limits) noexcept
{
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&limits.num_multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&limits.max_threads_per_multiprocessor, cudaDevAttrMaxThreadsPerMultiProcessor,
                                   device);
  }
  return error;
}

}  // namespace

nvinfer1::IPluginCapability* ElementwisePlugin::getCapabilityInterface(nvinfer1::PluginCapabilityType type) noexcept
{
  switch (type) {
    case nvinfer1::PluginCapabilityType::kCORE:
      return static_cast<nvinfer1::IPluginV3OneCore*>(this);
    case nvinfer1::PluginCapabilityType::kBUILD:
      return static_cast<nvinfer1::IPluginV3OneBuild*>(this);
    case nvinfer1::PluginCapabilityType::kRUNTIME:
      return static_cast<nvinfer1::IPluginV3OneRuntime*>(this);
  }
  return nullptr;
}

nvinfer1::IPluginV3* ElementwisePlugin::clone() noexcept
{
  auto* const copy = new (std::nothrow) ElementwisePlugin(*op_);
  if (copy != nullptr) {
    copy->limits_ = limits_;
    copy->limits_status_ = limits_status_;
  }
  return copy;
}

std::int32_t ElementwisePlugin::configurePlugin(nvinfer1::DynamicPluginTensorDesc const* inputs,
                                                std::int32_t num_inputs,
                                                nvinfer1::DynamicPluginTensorDesc const* outputs,
                                                std::int32_t num_outputs) noexcept
{
  if (num_inputs != 1 || num_outputs != 1) {
    return kUnsupported;
  }
  if (!takes(*op_, inputs[0].desc) || outputs[0].desc.type != inputs[0].desc.type ||
      outputs[0].desc.format != nvinfer1::TensorFormat::kLINEAR) {
    return kUnsupported;
  }
  return kSuccess;
}

std::int32_t ElementwisePlugin::getOutputDataTypes(nvinfer1::DataType* output_types, std::int32_t num_outputs,
                                                   nvinfer1::DataType const* input_types,
                                                   std::int32_t num_inputs) const noexcept
{
  if (num_inputs != 1 || num_outputs != 1) {
    return kUnsupported;
  }
  if (!takes(*op_, input_types[0])) {
    return kUnsupported;
  }
  output_types[0] = input_types[0];
  return kSuccess;
}

std::int32_t ElementwisePlugin::getOutputShapes(nvinfer1::DimsExprs const* inputs, std::int32_t num_inputs,
                                                nvinfer1::DimsExprs const* /*shape_inputs*/,
                                                std::int32_t num_shape_inputs, nvinfer1::DimsExprs* outputs,
                                                std::int32_t num_outputs,
                                                nvinfer1::IExprBuilder& /*expressions*/) noexcept
{
  if (num_inputs != 1 || num_outputs != 1 || num_shape_inputs != 0) {
    return kUnsupported;
  }
  outputs[0] = inputs[0];
  return kSuccess;
}

bool ElementwisePlugin::supportsFormatCombination(std::int32_t position,
                                                  nvinfer1::DynamicPluginTensorDesc const* tensors,
                                                  std::int32_t num_inputs, std::int32_t num_outputs) noexcept
{
  if (num_inputs != 1 || num_outputs != 1 || position < 0 || position > 1) {
    return false;
  }
  nvinfer1::PluginTensorDesc const& asked = tensors[position].desc;
  return takes(*op_, asked) && (position == 0 || asked.type == tensors[0].desc.type);
}

std::int32_t ElementwisePlugin::onShapeChange(nvinfer1::PluginTensorDesc const* inputs, std::int32_t num_inputs,
                                              nvinfer1::PluginTensorDesc const* outputs,
                                              std::int32_t num_outputs) noexcept
{
  if (num_inputs != 1 || num_outputs != 1 || !takes(*op_, inputs[0]) || outputs[0].type != inputs[0].type ||
      num_elements(inputs[0].dims) != num_elements(outputs[0].dims)) {
    return kUnsupported;
  }
  return kSuccess;
}

std::int32_t ElementwisePlugin::enqueue(nvinfer1::PluginTensorDesc const* input_descs,
                                        nvinfer1::PluginTensorDesc const* /*output_descs*/,
                                        void const* const* inputs, void* const* outputs, void* /*workspace*/,
                                        cudaStream_t stream) noexcept
{
  std::int64_t const count = num_elements(input_descs[0].dims);
  StorageType type{};
  if (count < 0 || !storage_from_data_type(input_descs[0].type, type)) {
    return kUnsupported;
  }
  if (count == 0) {
    return kSuccess;
  }
  if (limits_status_ != kSuccess) {
    return limits_status_;
  }
  return static_cast<Status>(op_->launch(type, inputs[0], outputs[0], count, limits_, stream));
}

nvinfer1::IPluginV3* ElementwisePlugin::attachToContext(nvinfer1::IPluginResourceContext* /*context*/) noexcept
{
  auto* const attached = new (std::nothrow) ElementwisePlugin(*op_);
  if (attached != nullptr) {
    attached->limits_status_ = static_cast<Status>(query_limits(attached->limits_));
  }
  return attached;
}

nvinfer1::PluginFieldCollection const* ElementwisePlugin::getFieldsToSerialize() noexcept { return no_fields(); }

nvinfer1::IPluginV3* ElementwiseCreator::createPlugin(nvinfer1::AsciiChar const* /*name*/,
                                                      nvinfer1::PluginFieldCollection const* fields,
                                                      nvinfer1::TensorRTPhase /*phase*/) noexcept
{
  if (fields != nullptr && fields->nbFields > 0) {
    return nullptr;  // ignoring a field would compute another function than the graph, or the engine, asked for
  }
  return new (std::nothrow) ElementwisePlugin(*op_);
}

nvinfer1::PluginFieldCollection const* ElementwiseCreator::getFieldNames() noexcept { return no_fields(); }

}  // namespace andrea
