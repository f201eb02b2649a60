// 64-bit Arm with dot products: SDOT multiplies 8 bits by 8 bits, so activations go in as two halves of 7 bits.

#include <arm_neon.h>
#include <sys/auxv.h>

#include "cpu/paths/path.h"

namespace andrea::cpu {
namespace {

// q = 128 * high + low, high in -64 ... 63 and low in 0 ... 127. What does not fit is the same in both sums: they are
// added modulo 2^32, and their true sum does fit.
struct HalvesWords {
  static constexpr int kOutputs = 4;
  static constexpr int kRows = 3;
  static constexpr int kFewRows = 2;
  using Weights = int8x16_t;
  struct Activations {
    int8x16_t high, low;
  };
  struct Accumulator {
    int32x4_t high, low;
  };

  static Accumulator zero() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
  static Weights widen(const std::int8_t* codes) { return vld1q_s8(codes); }
  static Weights low(const std::uint8_t* codes) {
    return vreinterpretq_s8_u8(vandq_u8(vld1q_u8(codes), vdupq_n_u8(15)));
  }
  static Weights high(const std::uint8_t* codes) { return vreinterpretq_s8_u8(vshrq_n_u8(vld1q_u8(codes), 4)); }
  static Activations load(const std::int16_t* q) {
    std::int32_t halves[2];
    std::memcpy(halves, q, sizeof(halves));
    return {vreinterpretq_s8_s32(vdupq_n_s32(halves[0])), vreinterpretq_s8_s32(vdupq_n_s32(halves[1]))};
  }
  static Accumulator dot(Accumulator sum, Weights w, Activations a) {
    return {vdotq_s32(sum.high, w, a.high), vdotq_s32(sum.low, w, a.low)};
  }
  static void keep(const Accumulator&) {}
  static void store(Accumulator sum, std::int32_t* to) { vst1q_s32(to, vaddq_s32(vshlq_n_s32(sum.high, 7), sum.low)); }
  // Four activations become four high halves and four low ones, in the same eight bytes.
  static void arrange(std::int16_t* q, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += kGroup) {
      std::int8_t halves[2 * kGroup];
      for (int j = 0; j < kGroup; ++j) {
        halves[j] = static_cast<std::int8_t>(q[i + j] >> 7);
        halves[kGroup + j] = static_cast<std::int8_t>(q[i + j] & 127);
      }
      std::memcpy(q + i, halves, sizeof(halves));
    }
  }
};

bool is_supported() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }

}  // namespace

extern const Path kDotProduct;
const Path kDotProduct = {"dot-product", is_supported, LinearPath<HalvesWords>::prepare,
                          LinearPath<HalvesWords>::multiply};

}  // namespace andrea::cpu
