// AVX-VNNI: VPDPWSSD does in one step what AVX2 does in two.

#include "cpu/paths/x86_256.h"

#include <cpuid.h>

namespace andrea::cpu {
namespace {

struct VnniWords {
  static __m256i dot(__m256i sum, __m256i w, __m256i a) { return _mm256_dpwssd_avx_epi32(sum, w, a); }
};

// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, CPUID: leaf 7, sub-leaf 1, EAX bit 4.
bool is_supported() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 4 & 1) != 0;
}

}  // namespace

extern const Path kAvxVnni;
const Path kAvxVnni = {"avx-vnni", is_supported, LinearPath<Words256<VnniWords>>::prepare,
                       LinearPath<Words256<VnniWords>>::multiply};

}  // namespace andrea::cpu
