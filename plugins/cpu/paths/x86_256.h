// Registers of 256 bits: four outputs an accumulator, two running sums each, whose pairs are added at the end.

#pragma once

#include <immintrin.h>

#include "cpu/paths/path.h"

namespace andrea::cpu {
namespace {

// `Multiply::dot(sum, w, a)`: sum + the products of neighbouring int16, two by two.
template <class Multiply>
struct Words256 {
  static constexpr int kOutputs = 4;
  static constexpr int kFewRows = 2;
  static constexpr int kRows = 3;
  using Weights = __m256i;
  using Activations = __m256i;
  using Accumulator = __m256i;

  static Accumulator zero() { return _mm256_setzero_si256(); }
  static Weights widen(const std::int8_t* codes) { return _mm256_cvtepi8_epi16(bytes(codes)); }
  static Weights low(const std::uint8_t* codes) {
    return _mm256_cvtepu8_epi16(_mm_and_si128(bytes(codes), _mm_set1_epi8(15)));
  }
  static Weights high(const std::uint8_t* codes) {
    return _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(bytes(codes), 4), _mm_set1_epi8(15)));
  }
  static Activations load(const std::int16_t* q) {
    long long four;
    std::memcpy(&four, q, sizeof(four));
    return _mm256_set1_epi64x(four);
  }
  static Accumulator dot(Accumulator sum, Weights w, Activations a) { return Multiply::dot(sum, w, a); }
  static void store(Accumulator sum, std::int32_t* to) {
    const __m128i pairs = _mm_hadd_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), pairs);
  }
  static void keep(Accumulator& sum) { asm("" : "+x"(sum)); }
  static void arrange(std::int16_t*, std::int64_t) {}

 private:
  static __m128i bytes(const void* codes) { return _mm_loadu_si128(static_cast<const __m128i*>(codes)); }
};

}  // namespace
}  // namespace andrea::cpu
