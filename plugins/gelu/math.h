// GELU's tanh form, for one fp32 value and for one value of a 16-bit storage type. Compiled by nvcc and by g++.
//
//   GELU(x) = 0.5 x (1 + tanh(u)),   u = sqrt(2 / pi) (x + 0.044715 x^3)
//           = x / (1 + 2^t),         t = -2 u log2(e) = -x (c1 + c3 x^2)
//
// The second line is the same function without the cancellation of 1 + tanh(u) for negative x.
//
// Exact cases, all types: +0 -> +0, -0 -> -0, +inf -> +inf, -inf -> -0, NaN -> NaN.
#pragma once

#include <cstdint>

#if !defined(__CUDACC__)
#include <cmath>
#endif

#include "common/host_device.h"
#include "common/ieee.h"

namespace andrea::gelu {

// c1 = 2 sqrt(2 / pi) log2(e) and c3 = 0.044715 c1, each as an fp32 head and tail. c1's head keeps 22 bits only, so
// that subtracting it in exponent_tail below is exact.
inline constexpr float kC1 = 0x1.26aec2p+1F;
inline constexpr float kC1Head = 0x1.26aecp+1F;
inline constexpr float kC1Tail = 0x1.0de73ap-22F;
inline constexpr float kC3Head = 0x1.a5a7dp-4F;
inline constexpr float kC3Tail = -0x1.151aaep-29F;

// From here on GELU(-x) is below half of fp32's smallest subnormal (2^-150), and GELU(x) = x.
inline constexpr float kSaturation = 10.8125F;

// fp32 -> fp32. Only operations that IEEE 754 rounds correctly, so host and device agree bit for bit.
//
// With a = min(|x|, saturation), q = 2^-a(c1 + c3 a^2) and D = 1 + q (in (1, 2], so nothing overflows):
//   x >= 0: a / D        x < 0: -(a q) / D
// The exponent reaches 153, so it is carried as head + tail: an error of 2^-24 relative to it would be 2^-17 in q.
// q is held as 2^64 q, which keeps it a normal number until the last product: the one rounding a subnormal result sees.
ANDREA_HOST_DEVICE float gelu_fp32(float x)
{
  using ieee::add;
  using ieee::fma;
  using ieee::mul;

  float const a = ieee::min_number(ieee::magnitude(x), kSaturation);
  bool const negative = (ieee::bits_from_float(x) >> 31U) != 0U;

  // slope + slope_tail = c1 + c3 a^2
  float const square = mul(a, a);
  float const square_tail = fma(a, a, -square);
  float const slope = fma(kC3Head, square, kC1Head);
  float const rounded_part = add(slope, -kC1Head);  // exact: see kC1Head
  float slope_tail = fma(kC3Head, square, -rounded_part);
  slope_tail = add(slope_tail, fma(kC3Tail, square, fma(kC3Head, square_tail, kC1Tail)));

  // a (slope + slope_tail) = n + f, n an integer, |f| <= 1/2 and a little. Adding kRound leaves -n + 191 in the low
  // bits of the sum; 191 = 127 + 64 makes them the exponent field of 2^(64 - n).
  constexpr float kRound = 0x1.8p23F + 191.0F;
  float const shifted = fma(-a, slope, kRound);
  float const minus_n = add(shifted, -kRound);
  float const scale = ieee::float_from_bits(ieee::bits_from_float(shifted) << 23U);
  float const f = fma(a, slope_tail, fma(a, slope, minus_n));

  // 2^-f = 1 + f P(f), minimax.
  float p = 0x1.6487cap-13F;
  p = fma(p, f, -0x1.604e4cp-10F);
  p = fma(p, f, 0x1.3af994p-7F);
  p = fma(p, f, -0x1.c6abe6p-5F);
  p = fma(p, f, 0x1.ebfc24p-3F);
  p = fma(p, f, -0x1.62e434p-1F);
  float const power = fma(p, f, 1.0F);

  float const q_scaled = mul(power, scale);
  float const denominator = fma(q_scaled, 0x1p-64F, 1.0F);
  float const denominator_tail = fma(q_scaled, 0x1p-64F, add(1.0F, -denominator));
  float const reciprocal = ieee::reciprocal_1_2(denominator);

  float const numerator = negative ? mul(a, q_scaled) : a;
  float const quotient = mul(numerator, reciprocal);
  float const residual = fma(-quotient, denominator_tail, fma(-quotient, denominator, numerator));
  float const corrected = fma(residual, reciprocal, quotient);
  float const result = mul(corrected, negative ? -0x1p-64F : 1.0F);

  // x itself where the function is x to the last bit, and for +inf; the comparison is false for NaN, which passes.
  return x <= kSaturation ? result : x;
}

// The two approximate instructions the 16-bit path uses, as the device has them.
struct DeviceApproximations {
#if defined(__CUDACC__)
  static __device__ __forceinline__ float exp2(float t)
  {
    float result = 0.0F;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(t));
    return result;
  }
  static __device__ __forceinline__ float reciprocal(float d)
  {
    float result = 0.0F;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(d));
    return result;
  }
#endif
};

#if !defined(__CUDACC__)
// A host model of them: the exact value times 1 + the given relative error, rounded, subnormals flushed as .ftz does.
//
// Documented (PTX ISA 9, sections 9.7.3.21 and 9.7.3.13, "Floating Point Instructions: ex2" and "... rcp"): at most 2 ulp
// from the correctly rounded result, and at most 1 ulp. Errors of 2^-22 and 2^-23 reach that in every binade.
struct ModelledApproximations {
  double exp2_relative_error = 0.0;
  double reciprocal_relative_error = 0.0;

  static float flush(double value)
  {
    auto const rounded = static_cast<float>(value);
    return std::fabs(rounded) < 0x1p-126F ? std::copysign(0.0F, rounded) : rounded;
  }
  [[nodiscard]] float exp2(float t) const
  {
    return flush(std::exp2(static_cast<double>(flush(t))) * (1.0 + exp2_relative_error));
  }
  [[nodiscard]] float reciprocal(float d) const
  {
    return flush(1.0 / static_cast<double>(flush(d)) * (1.0 + reciprocal_relative_error));
  }
};
#endif

// fp32 -> fp32, accurate enough to be rounded to a 16-bit storage type: the exponent is not carried in two parts, and
// exp2 and the reciprocal are single approximate instructions.
//
// kScaleLog2 shifts the denominator's range: 1 / (1 + 2^t) = 2^-k / (2^-k + 2^(t - k)). fp16 needs none (0). bf16's
// results reach 2^-133, where t is 137 and 2^t alone would overflow; 12 keeps 2^(t - 12) finite, and x 2^-12 exact for
// bf16's smallest subnormals.
template <int kScaleLog2, typename Approximations>
ANDREA_HOST_DEVICE float gelu_16bit(float x, Approximations const& approximations)
{
  static_assert(kScaleLog2 == 0 || kScaleLog2 == 12, "the two scales that were proven over all inputs");
  constexpr float kScale = kScaleLog2 == 0 ? 1.0F : 0x1p-12F;
  // -16 gives -0 in both types, and keeps -inf from meeting 1 / inf = 0. A NaN passes.
  float const clamped = x < -16.0F ? -16.0F : x;
  float const square = ieee::mul(clamped, clamped);
  float const slope = ieee::fma(-0x1.a5a7dp-4F, square, -kC1);
  float const t = kScaleLog2 == 0 ? ieee::mul(clamped, slope) : ieee::fma(clamped, slope, -1.0F * kScaleLog2);
  float const denominator = ieee::add(approximations.exp2(t), kScale);
  float const scaled = kScaleLog2 == 0 ? clamped : ieee::mul(clamped, kScale);
  return ieee::mul(scaled, approximations.reciprocal(denominator));
}

}  // namespace andrea::gelu
