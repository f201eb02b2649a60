// The floating-point parts of a linear layer, as plain loops that every path compiles with its own instructions.
//
// Sums are taken in 16 running totals, whatever the width of a register, and products are not contracted into fused
// ones (-ffp-contract=off): the bits are the same on every processor. Everything is in an unnamed namespace, so that no
// path's code is linked into another's.

#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/linear.h"

namespace andrea::cpu {
namespace {

constexpr std::int64_t kTotals = 16;

inline float total_of(const float (&totals)[kTotals]) {
  float half[8], quarter[4];
  for (int i = 0; i < 8; ++i) half[i] = totals[i] + totals[i + 8];
  for (int i = 0; i < 4; ++i) quarter[i] = half[i] + half[i + 4];
  return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

// Adds up f(i) for i = 0 ... count - 1 in kTotals running totals.
template <class F>
inline float sum_of(std::int64_t count, F f) {
  float totals[kTotals] = {};
  std::int64_t i = 0;
  for (; i + kTotals <= count; i += kTotals)
    for (std::int64_t j = 0; j < kTotals; ++j) totals[j] += f(i + j);
  for (std::int64_t j = 0; i + j < count; ++j) totals[j] += f(i + j);
  return total_of(totals);
}

// The nearest integer, ties to even, for |x| < 2^22. Source: the classic shift by 1.5 * 2^23.
inline float nearest(float x) {
  constexpr float kShift = 12582912.0F;
  return (x + kShift) - kShift;
}

// y = (x - mean) / sqrt(var + epsilon) * gamma + beta. Source: ONNX LayerNormalization, over the last axis.
inline void layer_norm(const float* x, const Norm& norm, std::int64_t k, float* y) {
  const float mean = sum_of(k, [&](std::int64_t i) { return x[i]; }) / static_cast<float>(k);
  const float squares = sum_of(k, [&](std::int64_t i) { return (x[i] - mean) * (x[i] - mean); });
  const float inverse = 1.0F / __builtin_sqrtf(squares / static_cast<float>(k) + norm.epsilon);
  for (std::int64_t i = 0; i < k; ++i) y[i] = (x[i] - mean) * inverse * norm.gamma[i] + norm.beta[i];
}

// Rounds x to integers in -largest ... largest and returns the scale: x ≈ q * scale. NaN and Inf give the scale NaN
// and zeros; a row below 1e-30 gives zeros.
inline float round_row(const float* x, std::int64_t k, std::int32_t largest, std::int16_t* q) {
  std::int32_t bits[kTotals] = {};
  std::int64_t i = 0;
  for (; i + kTotals <= k; i += kTotals)
    for (std::int64_t j = 0; j < kTotals; ++j) {
      std::int32_t word;
      std::memcpy(&word, x + i + j, 4);
      word &= 0x7fffffff;
      bits[j] = word > bits[j] ? word : bits[j];  // magnitudes sort as their bits do, NaN above all
    }
  std::int32_t most = 0;
  for (; i < k; ++i) {
    std::int32_t word;
    std::memcpy(&word, x + i, 4);
    word &= 0x7fffffff;
    most = word > most ? word : most;
  }
  for (const std::int32_t word : bits) most = word > most ? word : most;
  float magnitude;
  std::memcpy(&magnitude, &most, 4);
  const bool is_finite = most < 0x7f800000;
  if (!is_finite || magnitude < 1e-30F) {
    std::memset(q, 0, static_cast<std::size_t>(k) * sizeof(*q));
    return is_finite ? 0.0F : __builtin_nanf("");
  }
  const float inverse = static_cast<float>(largest) / magnitude;
  for (i = 0; i < k; ++i) q[i] = static_cast<std::int16_t>(static_cast<std::int32_t>(nearest(x[i] * inverse)));
  return magnitude / static_cast<float>(largest);
}

// e^x for x in -60 ... 60, within 2 ulp: 2^n * e^r, |r| <= ln 2 / 2. Source: Cody and Waite, Software Manual for the
// Elementary Functions (1980), chapter 6, for the two-part ln 2; the polynomial is e^r's Taylor polynomial of degree 7.
inline float exponential(float x) {
  const float n = nearest(x * 1.44269504088896341F);
  const float r = (x - n * 0.693359375F) - n * -2.12194440e-4F;
  // Estrin's order: what depends on nothing else is computed side by side.
  const float r2 = r * r;
  const float low = (1.0F + r) + r2 * (0.5F + r * 1.66666667e-1F);
  const float high = (4.16666667e-2F + r * 8.33333333e-3F) + r2 * (1.38888889e-3F + r * 1.98412698e-4F);
  const float p = low + r2 * r2 * high;
  return p * __builtin_bit_cast(float, (static_cast<std::int32_t>(n) + 127) << 23);
}

// 0.5 x (1 + tanh(u)) = x / (1 + e^(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3). Source: ONNX Gelu, approximate="tanh".
inline float gelu(float x) {
  float z = -1.5957691216057308F * (x + 0.044715F * x * x * x);
  // NaN too: x carries it on. At 60 the result is below 1e-25, and no quotient is so small that a processor is slow.
  z = z > -60.0F ? z : -60.0F;
  z = z < 60.0F ? z : 60.0F;
  return x / (1.0F + exponential(z));
}

// One tile's sums of one row become its outputs. `sums`: scaled by the weights' scales where those are in blocks.
template <class Sum>
inline void write_tile(const Sum* sums, const float* scales, float row_scale, const Weights& weights,
                       std::int64_t tile, const Outputs& outputs, std::int64_t row) {
  const std::int64_t first = tile * kTileOutputs;
  const std::int64_t count = weights.n - first < kTileOutputs ? weights.n - first : kTileOutputs;
  float y[kTileOutputs];
  for (int i = 0; i < kTileOutputs; ++i) {
    const float scale = scales == nullptr ? row_scale : row_scale * scales[first + i];
    y[i] = static_cast<float>(sums[i]) * scale;
  }
  if (weights.bias != nullptr) {
    if (count == kTileOutputs)
      for (int i = 0; i < kTileOutputs; ++i) y[i] += weights.bias[first + i];
    else
      for (std::int64_t i = 0; i < count; ++i) y[i] += weights.bias[first + i];
  }
  if (outputs.gelu)
    for (float& value : y) value = gelu(value);
  float* to = outputs.y + row * weights.n + first;
  const float* residual = outputs.residual == nullptr ? nullptr : outputs.residual + row * weights.n + first;
  if (count == kTileOutputs && residual != nullptr)
    for (int i = 0; i < kTileOutputs; ++i) to[i] = y[i] + residual[i];
  else if (count == kTileOutputs)
    for (int i = 0; i < kTileOutputs; ++i) to[i] = y[i];
  else
    for (std::int64_t i = 0; i < count; ++i) to[i] = residual == nullptr ? y[i] : y[i] + residual[i];
}

}  // namespace
}  // namespace andrea::cpu
