// Embed8: rows of a head's packed codes, one for each token id: the embedding that is tied to it needs no copy of its own.

#include "cpu/linear.h"
#include "cpu/onnxruntime/operator.h"

namespace andrea::ort {
namespace {

constexpr const char* kName = "Embed8";

struct Kernel {
  const Api* api;
  std::int64_t width = 0;
};

MaybeError check(const Kernel& kernel, const Tensor& ids, const Tensor& codes, const Tensor& scales) {
  const Api& api = *kernel.api;
  if (ids.rank > 7) return invalid(api, kName, "the ids have more than 7 dimensions");
  if (codes.rank != 4 || codes.shape[2] != cpu::kTileOutputs || codes.shape[3] != cpu::kGroup)
    return invalid(api, kName, "the codes are not packed as [rows / 16, width / 4, 16, 4]");
  if (codes.shape[1] * cpu::kGroup < kernel.width) return invalid(api, kName, "the codes are narrower than the width");
  if (scales.rank != 1 || scales.shape[0] != codes.shape[0] * cpu::kTileOutputs)
    return invalid(api, kName, "the scales are not one for each row, in whole tiles");
  return nullptr;
}

MaybeError compute(void* self, KernelContext* context) {
  const Kernel& kernel = *static_cast<const Kernel*>(self);
  const Api& api = *kernel.api;
  Tensor ids, codes, scales;
  if (MaybeError error = read_input(api, context, 0, ids)) return error;
  if (MaybeError error = read_input(api, context, 1, codes)) return error;
  if (MaybeError error = read_input(api, context, 2, scales)) return error;
  if (MaybeError error = check(kernel, ids, codes, scales)) return error;
  std::int64_t shape[8];
  for (std::size_t i = 0; i < ids.rank; ++i) shape[i] = ids.shape[i];
  shape[ids.rank] = kernel.width;
  Value* output = nullptr;
  if (MaybeError error = api.KernelContext_GetOutput(context, 0, shape, ids.rank + 1, &output)) return error;
  void* data = nullptr;
  if (MaybeError error = api.GetTensorMutableData(output, &data)) return error;

  auto* y = static_cast<float*>(data);
  const auto* const id = static_cast<const std::int64_t*>(ids.data);
  const auto* const code = static_cast<const std::int8_t*>(codes.data);
  const auto* const scale = static_cast<const float*>(scales.data);
  const std::int64_t count = ids.count(0, ids.rank), tile_bytes = codes.count(1, 4);
  for (std::int64_t i = 0; i < count; ++i, y += kernel.width) {
    if (id[i] < 0 || id[i] >= scales.shape[0]) return invalid(api, kName, "an id is not one of the rows");
    const std::int8_t* const row =
        code + id[i] / cpu::kTileOutputs * tile_bytes + id[i] % cpu::kTileOutputs * cpu::kGroup;
    for (std::int64_t k = 0; k < kernel.width; ++k) {
      const std::int64_t group = k / cpu::kGroup;
      y[k] = static_cast<float>(row[group * cpu::kTileOutputs * cpu::kGroup + k % cpu::kGroup]) * scale[id[i]];
    }
  }
  return nullptr;
}

MaybeError create(const CustomOp*, const Api* api, const KernelInfo* info, void** out) {
  std::unique_ptr<Kernel> kernel(new (std::nothrow) Kernel{api});
  if (kernel == nullptr) return out_of_memory(*api);
  if (MaybeError error = api->KernelInfoGetAttribute_int64(info, "width", &kernel->width)) return error;
  if (kernel->width < 1) return invalid(*api, kName, "the width is not positive");
  *out = kernel.release();
  return nullptr;
}

CustomOp make_operator() {
  CustomOp op{};
  fill_common(op);
  op.GetName = [](const CustomOp*) { return kName; };
  op.GetInputType = [](const CustomOp*, std::size_t index) {
    constexpr ElementType kTypes[] = {ElementType::kInt64, ElementType::kInt8, ElementType::kFloat};
    return kTypes[index];
  };
  op.GetInputTypeCount = [](const CustomOp*) -> std::size_t { return 3; };
  op.KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  op.CreateKernelV2 = create;
  op.KernelComputeV2 = compute;
  return op;
}

}  // namespace

const CustomOp& embed_operator() {
  static const CustomOp op = make_operator();
  return op;
}

}  // namespace andrea::ort
