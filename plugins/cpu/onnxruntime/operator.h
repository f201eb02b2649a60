// What the operators share: their inputs as they come from onnxruntime, an error in words, the fields of an OrtCustomOp
// that are the same for all.

#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <new>

#include "cpu/onnxruntime/abi.h"

namespace andrea::ort {

// A status of onnxruntime's as it comes, or one of ours in words; null where all is well.
using MaybeError = Status*;

struct Tensor {
  const void* data = nullptr;
  ElementType type{};
  std::size_t rank = 0;
  std::int64_t shape[8] = {};

  std::int64_t count(std::size_t first, std::size_t last) const {
    std::int64_t product = 1;
    for (std::size_t i = first; i < last; ++i) product *= shape[i];
    return product;
  }
};

inline MaybeError read_input(const Api& api, const KernelContext* context, std::size_t index, Tensor& out) {
  const Value* value = nullptr;
  if (MaybeError error = api.KernelContext_GetInput(context, index, &value)) return error;
  if (value == nullptr) return api.CreateStatus(ErrorCode::kInvalidArgument, "an input is missing");
  TensorInfo* info = nullptr;
  if (MaybeError error = api.GetTensorTypeAndShape(value, &info)) return error;
  MaybeError error = api.GetTensorElementType(info, &out.type);
  if (error == nullptr) error = api.GetDimensionsCount(info, &out.rank);
  if (error == nullptr && out.rank > 8)
    error = api.CreateStatus(ErrorCode::kInvalidArgument, "an input has more than 8 dimensions");
  if (error == nullptr) error = api.GetDimensions(info, out.shape, out.rank);
  api.ReleaseTensorTypeAndShapeInfo(info);
  if (error != nullptr) return error;
  void* data = nullptr;
  error = api.GetTensorMutableData(const_cast<Value*>(value), &data);
  out.data = data;
  return error;
}

// An operator's refusal: its name, and what is wrong.
inline MaybeError invalid(const Api& api, const char* op, const char* what) {
  char message[240];
  std::snprintf(message, sizeof(message), "com.andrea %s: %s", op, what);
  return api.CreateStatus(ErrorCode::kInvalidArgument, message);
}

inline MaybeError out_of_memory(const Api& api) {
  return api.CreateStatus(ErrorCode::kFail, "com.andrea: out of memory");
}

// The fields that every operator of this library has alike: one float output, all inputs required, in memory of the CPU.
inline void fill_common(CustomOp& op) {
  op.version = kApiVersion;
  op.GetExecutionProviderType = [](const CustomOp*) -> const char* { return "CPUExecutionProvider"; };
  op.GetOutputType = [](const CustomOp*, std::size_t) { return ElementType::kFloat; };
  op.GetOutputTypeCount = [](const CustomOp*) -> std::size_t { return 1; };
  op.GetInputCharacteristic = [](const CustomOp*, std::size_t) { return Characteristic::kRequired; };
  op.GetOutputCharacteristic = [](const CustomOp*, std::size_t) { return Characteristic::kRequired; };
  op.GetInputMemoryType = [](const CustomOp*, std::size_t) { return MemoryType::kDefault; };
  op.GetVariadicInputMinArity = [](const CustomOp*) { return 1; };
  op.GetVariadicInputHomogeneity = [](const CustomOp*) { return 1; };
  op.GetVariadicOutputMinArity = [](const CustomOp*) { return 1; };
  op.GetVariadicOutputHomogeneity = [](const CustomOp*) { return 1; };
  op.GetStartVersion = [](const CustomOp*) { return 1; };
  op.GetEndVersion = [](const CustomOp*) { return 1; };
}

// The operators of each file, made once a process.
constexpr std::size_t kNumLinearOperators = 8;
const CustomOp& linear_operator(std::size_t index);
const CustomOp& embed_operator();

}  // namespace andrea::ort
