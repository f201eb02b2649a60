// The ways GELU was tried in, one kernel each, for counting instructions. Not part of the library.
//
// Every kernel computes one 16-byte pack a thread, without loop or bounds, around the formula; `copy` is the same
// around nothing. What a formulation costs per element is the difference, divided by the pack's elements.
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/storage.h"
#include "gelu/math.h"

namespace {

using namespace andrea;

struct alignas(16) Pack {
  std::uint32_t words[4];
};

// u = sqrt(2 / pi) (x + 0.044715 x^3)
__device__ __forceinline__ float inner(float x) { return x * fmaf(0.0356774081F, x * x, 0.797884561F); }

__device__ __forceinline__ float tanh_approx(float x)
{
  float y = 0.0F;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

struct Shipped32 {
  static __device__ float apply(float x) { return gelu::gelu_fp32(x); }
};
struct ShippedFp16 {
  static __device__ float apply(float x) { return gelu::gelu_16bit<0>(x, gelu::DeviceApproximations{}); }
};
struct ShippedBf16 {
  static __device__ float apply(float x) { return gelu::gelu_16bit<12>(x, gelu::DeviceApproximations{}); }
};
struct ExpPlain {
  static __device__ float apply(float x)
  {
    return x * gelu::DeviceApproximations::reciprocal(1.0F + gelu::DeviceApproximations::exp2(
                                                                 x * fmaf(-0.102943240F, x * x, -2.30220820F)));
  }
};
struct TanhAccurate {
  static __device__ float apply(float x) { return 0.5F * x * (1.0F + tanhf(inner(x))); }
};
struct TanhApprox {
  static __device__ float apply(float x)
  {
    float const half = 0.5F * x;
    return fmaf(half, tanh_approx(inner(x)), half);
  }
};
struct Nothing {
  static __device__ float apply(float x) { return x; }
};

template <typename Storage, typename Formula>
__device__ __forceinline__ void each(Pack const* input, Pack* output)
{
  std::uint32_t const i = blockIdx.x * blockDim.x + threadIdx.x;
  Pack pack = input[i];
#pragma unroll
  for (std::uint32_t& word : pack.words) {
    if constexpr (Storage::kElementsPerWord == 1) {
      word = Storage::store(Formula::apply(Storage::load(word)));
    } else {
      word = Storage::store_pair(Formula::apply(Storage::load(static_cast<std::uint16_t>(word & 0xFFFFU))),
                                 Formula::apply(Storage::load(static_cast<std::uint16_t>(word >> 16U))));
    }
  }
  output[i] = pack;
}

// Arithmetic in the 16-bit type itself, two elements an instruction.
template <typename Pair, typename Formula>
__device__ __forceinline__ void each_pair(Pack const* input, Pack* output)
{
  std::uint32_t const i = blockIdx.x * blockDim.x + threadIdx.x;
  Pack pack = input[i];
#pragma unroll
  for (std::uint32_t& word : pack.words) {
    Pair pair = *reinterpret_cast<Pair*>(&word);
    pair = Formula::apply(pair);
    word = *reinterpret_cast<std::uint32_t*>(&pair);
  }
  output[i] = pack;
}

struct PackedTanhFp16 {
  static __device__ __half2 apply(__half2 const& x)
  {
    __half2 const u = __hmul2(x, __hfma2(__float2half2_rn(0.0356774081F), __hmul2(x, x),
                                         __float2half2_rn(0.797884561F)));
    std::uint32_t bits = *reinterpret_cast<std::uint32_t const*>(&u);
    asm("tanh.approx.f16x2 %0, %0;" : "+r"(bits));
    __half2 const tanh = *reinterpret_cast<__half2*>(&bits);
    __half2 const half = __hmul2(x, __float2half2_rn(0.5F));
    return __hfma2(half, tanh, half);
  }
};
struct PackedTanhBf16 {
  static __device__ __nv_bfloat162 apply(__nv_bfloat162 const& x)
  {
    __nv_bfloat162 const u = __hmul2(x, __hfma2(__float2bfloat162_rn(0.0356774081F), __hmul2(x, x),
                                                __float2bfloat162_rn(0.797884561F)));
    std::uint32_t bits = *reinterpret_cast<std::uint32_t const*>(&u);
    asm("tanh.approx.bf16x2 %0, %0;" : "+r"(bits));
    __nv_bfloat162 const tanh = *reinterpret_cast<__nv_bfloat162*>(&bits);
    __nv_bfloat162 const half = __hmul2(x, __float2bfloat162_rn(0.5F));
    return __hfma2(half, tanh, half);
  }
};
// The instructions themselves: CUDA's h2exp2 converts to fp32 and back. Its h2rcp does too, there being no packed one.
struct PackedExpFp16 {
  static __device__ __half2 apply(__half2 const& x)
  {
    __half2 const t = __hmul2(x, __hfma2(__float2half2_rn(-0.102943240F), __hmul2(x, x),
                                         __float2half2_rn(-2.30220820F)));
    std::uint32_t bits = *reinterpret_cast<std::uint32_t const*>(&t);
    asm("ex2.approx.f16x2 %0, %0;" : "+r"(bits));
    return __hmul2(x, h2rcp(__hadd2(__float2half2_rn(1.0F), *reinterpret_cast<__half2*>(&bits))));
  }
};
struct PackedExpBf16 {
  static __device__ __nv_bfloat162 apply(__nv_bfloat162 const& x)
  {
    __nv_bfloat162 const t = __hmul2(x, __hfma2(__float2bfloat162_rn(-0.102943240F), __hmul2(x, x),
                                                __float2bfloat162_rn(-2.30220820F)));
    std::uint32_t bits = *reinterpret_cast<std::uint32_t const*>(&t);
    asm("ex2.approx.ftz.bf16x2 %0, %0;" : "+r"(bits));
    return __hmul2(x, h2rcp(__hadd2(__float2bfloat162_rn(1.0F), *reinterpret_cast<__nv_bfloat162*>(&bits))));
  }
};

}  // namespace

#define KERNEL(name, body) \
  extern "C" __global__ void name(Pack const* input, Pack* output) { body(input, output); }

KERNEL(copy, (each<Fp32, Nothing>))
KERNEL(fp32_exp_compensated, (each<Fp32, Shipped32>))
KERNEL(fp32_exp_plain, (each<Fp32, ExpPlain>))
KERNEL(fp32_tanh_accurate, (each<Fp32, TanhAccurate>))
KERNEL(fp32_tanh_approx, (each<Fp32, TanhApprox>))
KERNEL(fp16_exp, (each<Fp16, ShippedFp16>))
KERNEL(fp16_tanh_approx, (each<Fp16, TanhApprox>))
KERNEL(fp16_packed_tanh, (each_pair<__half2, PackedTanhFp16>))
KERNEL(fp16_packed_exp, (each_pair<__half2, PackedExpFp16>))
KERNEL(bf16_exp_scaled, (each<Bf16, ShippedBf16>))
KERNEL(bf16_tanh_approx, (each<Bf16, TanhApprox>))
#if __CUDA_ARCH__ >= 900  // tanh.approx.bf16x2 and ex2.approx.ftz.bf16x2 do not exist before
KERNEL(bf16_packed_tanh, (each_pair<__nv_bfloat162, PackedTanhBf16>))
KERNEL(bf16_packed_exp, (each_pair<__nv_bfloat162, PackedExpBf16>))
#endif
