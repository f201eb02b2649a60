// The linear layer as operators of domain com.andrea: one kernel, and an operator for each of the ways a transformer
// block uses it, with the layer norm before it, with GELU after it, with the residual stream added.
// andrea_export/operators/linear.py has the same rows, and the ONNX function of each.

#include <cstdio>
#include <initializer_list>
#include <memory>
#include <new>

#include "cpu/linear.h"
#include "cpu/onnxruntime/operator.h"

namespace andrea::ort {
namespace {

// Fewer rows than this are rounded by the thread that asks.
constexpr std::int64_t kRowsWorthSharing = 8;
// Stretches of tiles that threads take in turn: enough for one that is late to be waited for little.
constexpr std::int64_t kStretches = 8;

struct Row {
  const char* name;
  bool norm, four_bits, gelu, residual;
};

constexpr Row kRows[] = {
    {"Linear8", false, false, false, false},    {"Linear8Add", false, false, false, true},
    {"NormLinear8", true, false, false, false}, {"NormLinear8Gelu", true, false, true, false},
    {"Linear4", false, true, false, false},     {"Linear4Add", false, true, false, true},
    {"NormLinear4", true, true, false, false},  {"NormLinear4Gelu", true, true, true, false},
};

struct Kernel {
  const Api* api;
  const Row* row;
  float epsilon = 0;
  std::int64_t largest = cpu::kLargestActivation;
};

MaybeError invalid(const Kernel& kernel, const char* what) { return invalid(*kernel.api, kernel.row->name, what); }

struct Inputs {
  Tensor x, gamma, beta, codes, scales, bias, residual;
};

MaybeError read_inputs(const Kernel& kernel, const KernelContext* context, Inputs& in) {
  std::size_t index = 0;
  Tensor* const wanted[] = {&in.x,      kernel.row->norm ? &in.gamma : nullptr, kernel.row->norm ? &in.beta : nullptr,
                            &in.codes,  &in.scales,
                            &in.bias,   kernel.row->residual ? &in.residual : nullptr};
  for (Tensor* tensor : wanted)
    if (tensor != nullptr)
      if (MaybeError error = read_input(*kernel.api, context, index++, *tensor)) return error;
  return nullptr;
}

// What the inputs say of the layer; an error in words where they do not fit each other or were packed otherwise.
MaybeError layer_of(const Kernel& kernel, const Inputs& in, cpu::Weights& weights) {
  if (in.x.rank == 0) return invalid(kernel, "x is a scalar, expected at least one axis");
  if (in.bias.rank != 1) return invalid(kernel, "the bias is not a vector");
  const std::int64_t k = in.x.shape[in.x.rank - 1], n = in.bias.shape[0];
  if (k < 1 || n < 1) return invalid(kernel, "an empty row: x's last axis and the bias need at least one element");
  weights = cpu::Weights{static_cast<const std::uint8_t*>(in.codes.data),
                         static_cast<const float*>(in.scales.data),
                         static_cast<const float*>(in.bias.data),
                         k,
                         n,
                         0,
                         static_cast<std::int32_t>(kernel.largest)};
  const std::int64_t per_group = kernel.row->four_bits ? 2 * cpu::kGroup : cpu::kGroup;
  const std::int64_t expected[] = {weights.tiles(), weights.padded_k() / per_group, cpu::kTileOutputs, cpu::kGroup};
  bool fits = in.codes.rank == 4;
  for (std::size_t i = 0; fits && i < 4; ++i) fits = in.codes.shape[i] == expected[i];
  if (!fits) {
    char what[160];
    std::snprintf(what, sizeof(what), "the weights are not packed as [%lld, %lld, 16, 4], which %lld inputs and %lld "
                  "outputs need", static_cast<long long>(expected[0]), static_cast<long long>(expected[1]),
                  static_cast<long long>(k), static_cast<long long>(n));
    return invalid(kernel, what);
  }
  if (kernel.row->four_bits) {
    if (in.scales.rank != 2 || in.scales.shape[0] < 1 || in.scales.shape[1] != weights.padded_n() ||
        k % in.scales.shape[0] != 0 || k / in.scales.shape[0] % cpu::kPaddedTo != 0 ||
        k / in.scales.shape[0] > cpu::kLargestBlock)
      return invalid(kernel, "the scales are not [blocks, outputs in whole tiles] with blocks of 32, 64, 128 or 256");
    weights.block = k / in.scales.shape[0];
  } else if (in.scales.rank != 1 || in.scales.shape[0] != weights.padded_n()) {
    return invalid(kernel, "the scales are not one for each output, in whole tiles");
  }
  for (const Tensor* vector : {&in.gamma, &in.beta})
    if (kernel.row->norm && (vector->rank != 1 || vector->shape[0] != k))
      return invalid(kernel, "the norm's scale or bias does not have the length of a row");
  return nullptr;
}

struct Work {
  const cpu::Path* path;
  const float* x;
  cpu::Norm norm;
  cpu::Weights weights;
  cpu::Rows rows;
  std::int64_t num_rows, num_stretches;
  cpu::Outputs outputs;
};

void round_rows(void* data, std::size_t index) {
  const Work& work = *static_cast<const Work*>(data);
  const auto row = static_cast<std::int64_t>(index);
  work.path->prepare(work.x, work.norm, work.weights, work.rows, row, row + 1);
}

void multiply_tiles(void* data, std::size_t index) {
  const Work& work = *static_cast<const Work*>(data);
  const auto i = static_cast<std::int64_t>(index);
  const std::int64_t tiles = work.weights.tiles();
  work.path->multiply(work.weights, work.rows, work.num_rows, work.outputs, tiles * i / work.num_stretches,
                      tiles * (i + 1) / work.num_stretches);
}

MaybeError run(Work& work, const Api& api, const KernelContext* context) {
  const auto num_rows = static_cast<std::size_t>(work.num_rows);
  const auto padded = static_cast<std::size_t>(work.weights.padded_k());
  const std::size_t blocks =
      work.weights.block == 0 ? 0 : static_cast<std::size_t>(work.weights.k / work.weights.block);
  const std::unique_ptr<std::int16_t[]> q(new (std::nothrow) std::int16_t[num_rows * padded]);
  const std::unique_ptr<float[]> scales(new (std::nothrow) float[num_rows]);
  const std::unique_ptr<std::int32_t[]> sums(new (std::nothrow) std::int32_t[num_rows * blocks]);
  if (q == nullptr || scales == nullptr || sums == nullptr)
    return out_of_memory(api);
  work.rows = cpu::Rows{q.get(), scales.get(), sums.get()};
  if (work.num_rows < kRowsWorthSharing)
    work.path->prepare(work.x, work.norm, work.weights, work.rows, 0, work.num_rows);
  else if (MaybeError error = api.KernelContext_ParallelFor(context, round_rows, num_rows, 0, &work))
    return error;
  work.num_stretches = work.weights.tiles() < kStretches ? work.weights.tiles() : kStretches;
  return api.KernelContext_ParallelFor(context, multiply_tiles, static_cast<std::size_t>(work.num_stretches), 0, &work);
}

MaybeError compute(void* self, KernelContext* context) {
  const Kernel& kernel = *static_cast<const Kernel*>(self);
  const Api& api = *kernel.api;
  Inputs in;
  if (MaybeError error = read_inputs(kernel, context, in)) return error;
  Work work{};
  if (MaybeError error = layer_of(kernel, in, work.weights)) return error;
  std::int64_t shape[8];
  for (std::size_t i = 0; i < in.x.rank; ++i) shape[i] = in.x.shape[i];
  shape[in.x.rank - 1] = work.weights.n;
  if (kernel.row->residual) {
    bool same = in.residual.rank == in.x.rank;
    for (std::size_t i = 0; same && i < in.x.rank; ++i) same = in.residual.shape[i] == shape[i];
    if (!same) return invalid(kernel, "the residual does not have the result's shape");
  }
  Value* output = nullptr;
  if (MaybeError error = api.KernelContext_GetOutput(context, 0, shape, in.x.rank, &output)) return error;
  void* y = nullptr;
  if (MaybeError error = api.GetTensorMutableData(output, &y)) return error;
  work.num_rows = in.x.count(0, in.x.rank - 1);
  if (work.num_rows == 0) return nullptr;
  work.path = &cpu::chosen_path();
  work.x = static_cast<const float*>(in.x.data);
  work.norm = cpu::Norm{static_cast<const float*>(in.gamma.data), static_cast<const float*>(in.beta.data),
                        kernel.epsilon};
  work.outputs = cpu::Outputs{static_cast<float*>(y), static_cast<const float*>(in.residual.data), kernel.row->gelu};
  return run(work, api, context);
}

struct Operator : CustomOp {
  const Row* row;
};

const Row& row_of(const CustomOp* op) { return *static_cast<const Operator*>(op)->row; }

MaybeError create(const CustomOp* op, const Api* api, const KernelInfo* info, void** out) {
  std::unique_ptr<Kernel> kernel(new (std::nothrow) Kernel{api, &row_of(op)});
  if (kernel == nullptr) return out_of_memory(*api);
  if (kernel->row->norm)
    if (MaybeError error = api->KernelInfoGetAttribute_float(info, "epsilon", &kernel->epsilon)) return error;
  float largest = 0;
  if (MaybeError error = api->KernelInfoGetAttribute_float(info, "largest_activation", &largest)) return error;
  if (!(largest >= 1 && largest <= cpu::kLargestActivation))
    return invalid(*kernel, "largest_activation is not in 1 to 8191");
  kernel->largest = static_cast<std::int64_t>(largest);
  *out = kernel.release();
  return nullptr;
}

std::size_t num_inputs(const CustomOp* op) { return 4U + (row_of(op).norm ? 2U : 0U) + (row_of(op).residual ? 1U : 0U); }

ElementType input_type(const CustomOp* op, std::size_t index) {
  const bool is_codes = index == (row_of(op).norm ? 3U : 1U);
  if (!is_codes) return ElementType::kFloat;
  return row_of(op).four_bits ? ElementType::kUint8 : ElementType::kInt8;
}

Operator make_operator(const Row& row) {
  Operator op{};
  fill_common(op);
  op.row = &row;
  op.GetName = [](const CustomOp* self) { return row_of(self).name; };
  op.GetInputType = input_type;
  op.GetInputTypeCount = num_inputs;
  op.KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  op.CreateKernelV2 = create;
  op.KernelComputeV2 = compute;
  return op;
}

}  // namespace

const CustomOp& linear_operator(std::size_t index) {
  static_assert(sizeof(kRows) / sizeof(kRows[0]) == kNumLinearOperators);
  static Operator operators[kNumLinearOperators];
  static const bool made = [] {
    for (std::size_t i = 0; i < kNumLinearOperators; ++i) operators[i] = make_operator(kRows[i]);
    return true;
  }();
  static_cast<void>(made);
  return operators[index];
}

}  // namespace andrea::ort
