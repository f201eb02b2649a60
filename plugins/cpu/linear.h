// A linear layer over packed integer weights: the layout of the bytes, and the one contract that every path keeps.
//
//   y[m, n] = act( scale[m] * Σ_k q[m, k] * w[k, n] + bias[n] ) + residual[m, n]
//
// q are a row's activations in 14 bits, rounded on that row's own largest value. The sum over k is an integer sum, so
// it has one value, whatever instructions add it up; what is floating point around it is written once (row_math.h) in
// an order that does not depend on the width of a register. All paths therefore give the same bits.

#pragma once

#include <cstddef>
#include <cstdint>

namespace andrea::cpu {

// Outputs that lie together in the packed weights, and the k of one output that do: 64 bytes of int8, one cache line.
constexpr std::int64_t kTileOutputs = 16;
constexpr std::int64_t kGroup = 4;
// K is filled up to a multiple of it with zero weights.
constexpr std::int64_t kPaddedTo = 32;
// 14 bits with a sign: two halves of 7 bits fit into 8-bit dot products of any processor.
constexpr std::int32_t kLargestActivation = 8191;

// The most k that share a scale: so many products of 14 bits and 4 bits are far from leaving int32.
constexpr std::int64_t kLargestBlock = 256;

constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

// The weights of one layer. All pointers are borrowed.
//
// 8 bits: int8 [tiles][K / 4][16][4], codes in -127 ... 127, one scale an output.
// 4 bits: uint8 [tiles][K / 8][16][4]; byte j of an output holds k = j in its low half and k = j + 4 in its high half,
//         as code + 8; one scale for every block of K.
struct Weights {
  const std::uint8_t* codes;
  const float* scales;  // 8 bits: [N16]; 4 bits: [K / block][N16], N16 = N filled up to whole tiles
  const float* bias;    // [N] or null
  std::int64_t k, n;
  std::int64_t block;            // 4 bits: how many k share a scale, a multiple of 32; 8 bits: 0
  std::int32_t largest;          // activations are rounded to -largest ... largest, so that no sum can leave int32

  std::int64_t padded_k() const { return round_up(k, kPaddedTo); }
  std::int64_t padded_n() const { return round_up(n, kTileOutputs); }
  std::int64_t tiles() const { return padded_n() / kTileOutputs; }
  std::int64_t tile_bytes() const { return padded_k() * kTileOutputs / (block == 0 ? 1 : 2); }
};

// What is done to a row before it is rounded: the layer norm, if there is one. gamma is null where there is none.
struct Norm {
  const float* gamma;
  const float* beta;
  float epsilon;
};

// Rounded rows: what `prepare` writes and `multiply` reads.
struct Rows {
  std::int16_t* q;        // [M][padded K], in the order of the path that wrote it
  float* scales;          // [M]; NaN for a row that holds one, or an infinity
  std::int32_t* sums;     // [M][K / block] of q, for 4 bits; null for 8
};

struct Outputs {
  float* y;               // [M][N]
  const float* residual;  // [M][N] or null
  bool gelu;
};

// One instruction set's way of doing it.
struct Path {
  const char* name;
  bool (*is_supported)();
  // Rows first ... last - 1 of x [M][K], normed and rounded.
  void (*prepare)(const float* x, const Norm& norm, const Weights& weights, const Rows& rows, std::int64_t first,
                  std::int64_t last);
  // Outputs of tiles first ... last - 1, for all M rows.
  void (*multiply)(const Weights& weights, const Rows& rows, std::int64_t num_rows, const Outputs& outputs,
                   std::int64_t first, std::int64_t last);
};

// Every path that this library was compiled with, the best first; the last is portable.
const Path* const* all_paths();

// The best that this processor has; or the one ANDREA_CPU_PATH names, where it names one that runs here.
const Path& chosen_path();

}  // namespace andrea::cpu
