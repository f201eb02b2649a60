// The path for any processor: the reference that all others are compared with.

#include "cpu/paths/path.h"

namespace andrea::cpu {
namespace {

struct PortableWords {
  static constexpr int kOutputs = 4;
  static constexpr int kFewRows = 2;
  static constexpr int kRows = 2;
  struct Weights {
    std::int16_t of[kOutputs * kGroup];
  };
  using Activations = const std::int16_t*;
  struct Accumulator {
    std::int32_t of[kOutputs];
  };

  static Accumulator zero() { return {}; }
  static Weights widen(const std::int8_t* codes) {
    Weights w;
    for (int i = 0; i < kOutputs * kGroup; ++i) w.of[i] = codes[i];
    return w;
  }
  static Weights low(const std::uint8_t* codes) {
    Weights w;
    for (int i = 0; i < kOutputs * kGroup; ++i) w.of[i] = static_cast<std::int16_t>(codes[i] & 15);
    return w;
  }
  static Weights high(const std::uint8_t* codes) {
    Weights w;
    for (int i = 0; i < kOutputs * kGroup; ++i) w.of[i] = static_cast<std::int16_t>(codes[i] >> 4);
    return w;
  }
  static Activations load(const std::int16_t* q) { return q; }
  static Accumulator dot(Accumulator sum, const Weights& w, Activations a) {
    for (int output = 0; output < kOutputs; ++output)
      for (int k = 0; k < kGroup; ++k) sum.of[output] += w.of[output * kGroup + k] * a[k];
    return sum;
  }
  static void store(const Accumulator& sum, std::int32_t* to) {
    for (int output = 0; output < kOutputs; ++output) to[output] = sum.of[output];
  }
  static void keep(const Accumulator&) {}
  static void arrange(std::int16_t*, std::int64_t) {}
};

bool is_supported() { return true; }

}  // namespace

extern const Path kPortable;
const Path kPortable = {"portable", is_supported, LinearPath<PortableWords>::prepare,
                        LinearPath<PortableWords>::multiply};

}  // namespace andrea::cpu
