// AVX-512 VNNI: registers of 512 bits, eight outputs an accumulator, and thirty-two of them.

#include <immintrin.h>

#include "cpu/paths/path.h"

namespace andrea::cpu {
namespace {

struct Words512 {
  static constexpr int kOutputs = 8;
  static constexpr int kRows = 8;
  static constexpr int kFewRows = 8;
  using Weights = __m512i;
  using Activations = __m512i;
  using Accumulator = __m512i;

  static Accumulator zero() { return _mm512_setzero_si512(); }
  static Weights widen(const std::int8_t* codes) { return _mm512_cvtepi8_epi16(bytes(codes)); }
  static Weights low(const std::uint8_t* codes) {
    return _mm512_cvtepu8_epi16(_mm256_and_si256(bytes(codes), _mm256_set1_epi8(15)));
  }
  static Weights high(const std::uint8_t* codes) {
    return _mm512_cvtepu8_epi16(_mm256_and_si256(_mm256_srli_epi16(bytes(codes), 4), _mm256_set1_epi8(15)));
  }
  static Activations load(const std::int16_t* q) {
    long long four;
    std::memcpy(&four, q, sizeof(four));
    return _mm512_set1_epi64(four);
  }
  static Accumulator dot(Accumulator sum, Weights w, Activations a) {
    // _mm512_dpwssd_epi32, of which GCC 12 copies the accumulator before each use.
    asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(a));
    return sum;
  }
  static void keep(Accumulator&) {}
  static void store(Accumulator sum, std::int32_t* to) {
    // The two sums of an output are neighbours: the odd one is moved onto the even one.
    // The forms with a mask: GCC 12 warns of its own headers in the others.
    constexpr __mmask8 kAll = 0xff;
    const __m512i both = _mm512_add_epi32(sum, _mm512_maskz_srli_epi64(kAll, sum, 32));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_maskz_cvtepi64_epi32(kAll, both));
  }
  static void arrange(std::int16_t*, std::int64_t) {}

 private:
  static __m256i bytes(const void* codes) { return _mm256_loadu_si256(static_cast<const __m256i*>(codes)); }
};

bool is_supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}

}  // namespace

extern const Path kAvx512Vnni;
const Path kAvx512Vnni = {"avx512-vnni", is_supported, LinearPath<Words512>::prepare, LinearPath<Words512>::multiply};

}  // namespace andrea::cpu
