// AVX2: VPMADDWD multiplies pairs of int16 and adds them in 32 bits, where nothing can be clipped.

#include "cpu/paths/x86_256.h"

namespace andrea::cpu {
namespace {

struct MaddWords {
  static __m256i dot(__m256i sum, __m256i w, __m256i a) { return _mm256_add_epi32(sum, _mm256_madd_epi16(w, a)); }
};

bool is_supported() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

}  // namespace

extern const Path kAvx2;
const Path kAvx2 = {"avx2", is_supported, LinearPath<Words256<MaddWords>>::prepare,
                    LinearPath<Words256<MaddWords>>::multiply};

}  // namespace andrea::cpu
