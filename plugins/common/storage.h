// The storage types of tensors: how an element's bits become the fp32 value that is computed with, and back.
//
// Rounding to fp16 and bf16 is to nearest, ties to even, with gradual underflow. Host and device give the same bits,
// except that a NaN may come back with another payload.
#pragma once

#include <cstdint>

#include "common/host_device.h"
#include "common/ieee.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace andrea {

enum class StorageType : std::int32_t { kFp32 = 0, kFp16 = 1, kBf16 = 2 };

ANDREA_HOST_DEVICE float float_from_fp16(std::uint16_t bits)
{
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(bits));
#else
  std::uint32_t const sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16U;
  std::uint32_t const magnitude = bits & 0x7FFFU;
  if (magnitude >= 0x7C00U) {  // infinity or NaN
    return ieee::float_from_bits(sign | 0x7F800000U | ((magnitude & 0x3FFU) << 13U));
  }
  // Placing the 15 bits below fp32's exponent field and multiplying by 2^112 moves the bias from 15 to 127; the
  // product is exact, for subnormals too.
  float const shifted = ieee::float_from_bits(magnitude << 13U);
  return ieee::float_from_bits(sign | ieee::bits_from_float(shifted * 0x1p112F));
#endif
}

ANDREA_HOST_DEVICE std::uint16_t fp16_from_float(float value)
{
#if defined(__CUDA_ARCH__)
  return __half_as_ushort(__float2half_rn(value));
#else
  std::uint32_t const bits = ieee::bits_from_float(value);
  auto const sign = static_cast<std::uint16_t>((bits >> 16U) & 0x8000U);
  std::uint32_t const magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {
    return static_cast<std::uint16_t>(sign | 0x7E00U);
  }
  if (magnitude >= 0x477FF000U) {  // 65520, half way between the largest fp16 and 2^16, rounds to infinity
    return static_cast<std::uint16_t>(sign | 0x7C00U);
  }
  if (magnitude < 0x38800000U) {
    // Below 2^-14 an fp16 is a whole number of 2^-24 steps: adding 0.5, whose last bit is worth 2^-24, rounds to them.
    float const rounded = ieee::float_from_bits(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (ieee::bits_from_float(rounded) - 0x3F000000U));
  }
  std::uint32_t const odd = (magnitude >> 13U) & 1U;
  std::uint32_t const rounded = magnitude - 0x38000000U + 0xFFFU + odd;
  return static_cast<std::uint16_t>(sign | (rounded >> 13U));
#endif
}

ANDREA_HOST_DEVICE float float_from_bf16(std::uint16_t bits)
{
  return ieee::float_from_bits(static_cast<std::uint32_t>(bits) << 16U);
}

ANDREA_HOST_DEVICE std::uint16_t bf16_from_float(float value)
{
#if defined(__CUDA_ARCH__)
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
  std::uint32_t const bits = ieee::bits_from_float(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {
    return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);  // keep a NaN whose payload sits in the lower half
  }
  std::uint32_t const odd = (bits >> 16U) & 1U;
  return static_cast<std::uint16_t>((bits + 0x7FFFU + odd) >> 16U);
#endif
}

// Two fp16 (bf16) elements in one word, the first in the lower half: one conversion instruction on the device.
ANDREA_HOST_DEVICE std::uint32_t fp16_pair_from_floats(float first, float second)
{
#if defined(__CUDA_ARCH__)
  __half2 const pair = __floats2half2_rn(first, second);
  return static_cast<std::uint32_t>(__half_as_ushort(__low2half(pair))) |
         (static_cast<std::uint32_t>(__half_as_ushort(__high2half(pair))) << 16U);
#else
  return fp16_from_float(first) | (static_cast<std::uint32_t>(fp16_from_float(second)) << 16U);
#endif
}

ANDREA_HOST_DEVICE std::uint32_t bf16_pair_from_floats(float first, float second)
{
#if defined(__CUDA_ARCH__)
  __nv_bfloat162 const pair = __floats2bfloat162_rn(first, second);
  return static_cast<std::uint32_t>(__bfloat16_as_ushort(__low2bfloat16(pair))) |
         (static_cast<std::uint32_t>(__bfloat16_as_ushort(__high2bfloat16(pair))) << 16U);
#else
  return bf16_from_float(first) | (static_cast<std::uint32_t>(bf16_from_float(second)) << 16U);
#endif
}

// The three storage types as kernels see them: their enumerator, an element's bits, and how many of them a 32-bit word holds.
struct Fp32 {
  static constexpr StorageType kType = StorageType::kFp32;
  using Bits = std::uint32_t;
  static constexpr int kElementsPerWord = 1;
  static ANDREA_HOST_DEVICE float load(Bits bits) { return ieee::float_from_bits(bits); }
  static ANDREA_HOST_DEVICE Bits store(float value) { return ieee::bits_from_float(value); }
};

struct Fp16 {
  static constexpr StorageType kType = StorageType::kFp16;
  using Bits = std::uint16_t;
  static constexpr int kElementsPerWord = 2;
  static ANDREA_HOST_DEVICE float load(Bits bits) { return float_from_fp16(bits); }
  static ANDREA_HOST_DEVICE Bits store(float value) { return fp16_from_float(value); }
  static ANDREA_HOST_DEVICE std::uint32_t store_pair(float first, float second)
  {
    return fp16_pair_from_floats(first, second);
  }
};

struct Bf16 {
  static constexpr StorageType kType = StorageType::kBf16;
  using Bits = std::uint16_t;
  static constexpr int kElementsPerWord = 2;
  static ANDREA_HOST_DEVICE float load(Bits bits) { return float_from_bf16(bits); }
  static ANDREA_HOST_DEVICE Bits store(float value) { return bf16_from_float(value); }
  static ANDREA_HOST_DEVICE std::uint32_t store_pair(float first, float second)
  {
    return bf16_pair_from_floats(first, second);
  }
};

}  // namespace andrea
