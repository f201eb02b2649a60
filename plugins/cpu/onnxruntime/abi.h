// The part of onnxruntime's C interface that a library of custom operators calls, written from facts.
//
// onnxruntime's wheels ship no headers. Its `OrtApi` is a table of function pointers that is only ever appended to, and
// `OrtCustomOp` says in its first field how much of it there is; so a slot's number is all there is to know of it.
// Facts: include/onnxruntime/core/session/onnxruntime_c_api.h, releases 1.17 (API version 17) to 1.32; the sizes that
// onnxruntime asserts of its own table (101 for version 1, 118 for version 2) are asserted here of ours.

#pragma once

#include <cstddef>
#include <cstdint>

namespace andrea::ort {

constexpr std::uint32_t kApiVersion = 17;  // the first with a function that runs on onnxruntime's own threads

struct Status;
struct Value;
struct TensorInfo;
struct SessionOptions;
struct CustomOpDomain;
struct KernelInfo;
struct KernelContext;

enum class ErrorCode : int { kFail = 1, kInvalidArgument = 2 };
enum class ElementType : int { kUndefined = 0, kFloat = 1, kUint8 = 2, kInt8 = 3, kInt64 = 7 };
enum class Characteristic : int { kRequired = 0 };
enum class MemoryType : int { kDefault = 0 };

// OrtApi by its slots. The members that are not called are counted, not named.
struct Api {
  Status* (*CreateStatus)(ErrorCode code, const char* message);  // 0
  void* slots_1_25[25];
  Status* (*CreateCustomOpDomain)(const char* domain, CustomOpDomain** out);         // 26
  Status* (*CustomOpDomain_Add)(CustomOpDomain* domain, const struct CustomOp* op);  // 27
  Status* (*AddCustomOpDomain)(SessionOptions* options, CustomOpDomain* domain);     // 28
  void* slots_29_50[22];
  Status* (*GetTensorMutableData)(Value* value, void** out);  // 51
  void* slots_52_59[8];
  Status* (*GetTensorElementType)(const TensorInfo* info, ElementType* out);                       // 60
  Status* (*GetDimensionsCount)(const TensorInfo* info, std::size_t* out);                         // 61
  Status* (*GetDimensions)(const TensorInfo* info, std::int64_t* dimensions, std::size_t count);   // 62
  void* slots_63_64[2];
  Status* (*GetTensorTypeAndShape)(const Value* value, TensorInfo** out);  // 65
  void* slots_66_84[19];
  Status* (*KernelInfoGetAttribute_float)(const KernelInfo* info, const char* name, float* out);         // 85
  Status* (*KernelInfoGetAttribute_int64)(const KernelInfo* info, const char* name, std::int64_t* out);  // 86
  void* slots_87_89[3];
  Status* (*KernelContext_GetInput)(const KernelContext* context, std::size_t index, const Value** out);  // 90
  Status* (*KernelContext_GetOutput)(KernelContext* context, std::size_t index, const std::int64_t* dimensions,
                                     std::size_t count, Value** out);  // 91
  void* slot_92;
  void (*ReleaseStatus)(Status* status);  // 93
  void* slots_94_98[5];
  void (*ReleaseTensorTypeAndShapeInfo)(TensorInfo* info);  // 99
  void* slot_100;
  void (*ReleaseCustomOpDomain)(CustomOpDomain* domain);  // 101
  void* slots_102_273[172];
  Status* (*KernelContext_ParallelFor)(const KernelContext* context, void (*run)(void* data, std::size_t index),
                                       std::size_t total, std::size_t num_batches, void* data);  // 274
};
static_assert(offsetof(Api, ReleaseCustomOpDomain) == 101 * sizeof(void*));
static_assert(offsetof(Api, KernelContext_ParallelFor) == 274 * sizeof(void*));

struct ApiBase {
  const Api* (*GetApi)(std::uint32_t version);
  const char* (*GetVersionString)();
};

// OrtCustomOp. A function that returns by pointer in a later field is left out by leaving the field null.
struct CustomOp {
  std::uint32_t version;
  void* (*CreateKernel)(const CustomOp* op, const Api* api, const KernelInfo* info);
  const char* (*GetName)(const CustomOp* op);
  const char* (*GetExecutionProviderType)(const CustomOp* op);
  ElementType (*GetInputType)(const CustomOp* op, std::size_t index);
  std::size_t (*GetInputTypeCount)(const CustomOp* op);
  ElementType (*GetOutputType)(const CustomOp* op, std::size_t index);
  std::size_t (*GetOutputTypeCount)(const CustomOp* op);
  void (*KernelCompute)(void* kernel, KernelContext* context);
  void (*KernelDestroy)(void* kernel);
  Characteristic (*GetInputCharacteristic)(const CustomOp* op, std::size_t index);
  Characteristic (*GetOutputCharacteristic)(const CustomOp* op, std::size_t index);
  MemoryType (*GetInputMemoryType)(const CustomOp* op, std::size_t index);
  int (*GetVariadicInputMinArity)(const CustomOp* op);
  int (*GetVariadicInputHomogeneity)(const CustomOp* op);
  int (*GetVariadicOutputMinArity)(const CustomOp* op);
  int (*GetVariadicOutputHomogeneity)(const CustomOp* op);
  Status* (*CreateKernelV2)(const CustomOp* op, const Api* api, const KernelInfo* info, void** out);
  Status* (*KernelComputeV2)(void* kernel, KernelContext* context);
  Status* (*InferOutputShapeFn)(const CustomOp* op, void* context);
  int (*GetStartVersion)(const CustomOp* op);
  int (*GetEndVersion)(const CustomOp* op);
  std::size_t (*GetMayInplace)(int** inputs, int** outputs);
  void (*ReleaseMayInplace)(int* inputs, int* outputs);
  std::size_t (*GetAliasMap)(int** inputs, int** outputs);
  void (*ReleaseAliasMap)(int* inputs, int* outputs);
};
static_assert(offsetof(CustomOp, CreateKernelV2) == 17 * sizeof(void*));
static_assert(sizeof(CustomOp) == 26 * sizeof(void*));

}  // namespace andrea::ort
