// A linear layer for one instruction set, given a few words of it: what is the same in every path.
//
// `Words` says what a register of 8-bit weights is and how it is multiplied:
//   kOutputs            outputs of one accumulator; kTileOutputs / kOutputs of them make a tile
//   kRows, kFewRows     rows whose accumulators fit into the registers at once: beside nothing, beside a tile's weights
//   Weights, Activations, Accumulator
//   widen(codes)        kOutputs * kGroup int8 codes, as they are multiplied
//   low / high(codes)   the same from packed 4-bit codes, less 8 left to the caller: k = 0 ... 3 and k = 4 ... 7
//   load(q)             one row's kGroup activations, for all outputs at once
//   dot(sum, w, a)      sum + the kGroup products of every output
//   keep(sum)           nothing; a compiler that schedules across it would need more registers than there are
//   store(sums, to)     an accumulator's kOutputs sums
//   arrange(q, k)       a rounded row, put into the order `load` reads

#pragma once

#include "cpu/row_math.h"

namespace andrea::cpu {
namespace {

// Rows that are multiplied before the next ones: their sums stay in the first-level cache.
constexpr std::int64_t kRowsAtOnce = 96;
// k whose widened weights are used for all of them.
constexpr std::int64_t kDepth = kLargestBlock;

template <class Words>
struct LinearPath {
  static constexpr int kParts = kTileOutputs / Words::kOutputs;
  using Widened = typename Words::Weights[kParts];

  static void prepare(const float* x, const Norm& norm, const Weights& weights, const Rows& rows, std::int64_t first,
                      std::int64_t last) {
    const std::int64_t k = weights.k, padded = weights.padded_k();
    float* normed = norm.gamma == nullptr ? nullptr : new float[static_cast<std::size_t>(k)];
    for (std::int64_t row = first; row < last; ++row) {
      const float* from = x + row * k;
      if (normed != nullptr) {
        layer_norm(from, norm, k, normed);
        from = normed;
      }
      std::int16_t* q = rows.q + row * padded;
      rows.scales[row] = round_row(from, k, weights.largest, q);
      for (std::int64_t i = k; i < padded; ++i) q[i] = 0;
      if (weights.block != 0)
        for (std::int64_t block = 0; block < k / weights.block; ++block) {
          std::int32_t sum = 0;
          for (std::int64_t i = 0; i < weights.block; ++i) sum += q[block * weights.block + i];
          rows.sums[row * (k / weights.block) + block] = sum;
        }
      Words::arrange(q, padded);
    }
    delete[] normed;
  }

  static void multiply(const Weights& weights, const Rows& rows, std::int64_t num_rows, const Outputs& outputs,
                       std::int64_t first, std::int64_t last) {
    for (std::int64_t tile = first; tile < last; ++tile) {
      const std::uint8_t* codes = weights.codes + tile * weights.tile_bytes();
      std::int64_t row = 0;
      if (num_rows > Words::kFewRows)
        for (; row < num_rows; row += kRowsAtOnce) {
          const std::int64_t count = num_rows - row < kRowsAtOnce ? num_rows - row : kRowsAtOnce;
          if (weights.block == 0)
            many_rows_8(weights, codes, rows, row, count, outputs, tile);
          else
            many_rows_4(weights, codes, rows, row, count, outputs, tile);
        }
      else
        few_rows<Words::kFewRows>(weights, codes, rows, num_rows, outputs, tile);
    }
  }

 private:
  template <int kNum>
  static void few_rows(const Weights& weights, const std::uint8_t* codes, const Rows& rows, std::int64_t num_rows,
                       const Outputs& outputs, std::int64_t tile) {
    if constexpr (kNum > 1) {
      if (num_rows < kNum) return few_rows<kNum - 1>(weights, codes, rows, num_rows, outputs, tile);
    }
    if (weights.block == 0)
      few_rows_8<kNum>(weights, codes, rows, outputs, tile);
    else
      few_rows_4<kNum>(weights, codes, rows, outputs, tile);
  }

  template <int kNum>
  static void few_rows_8(const Weights& weights, const std::uint8_t* codes, const Rows& rows, const Outputs& outputs,
                         std::int64_t tile) {
    const std::int64_t padded = weights.padded_k();
    typename Words::Accumulator sums[kNum][kParts];
    clear(sums);
    const auto* from = reinterpret_cast<const std::int8_t*>(codes);
    for (std::int64_t k = 0; k < padded; k += kGroup, from += kGroup * kTileOutputs) {
      __builtin_prefetch(from + 1024);
      Widened w;
      for (int part = 0; part < kParts; ++part) w[part] = Words::widen(from + part * Words::kOutputs * kGroup);
      step<kNum>(sums, w, rows.q + k, padded);
    }
    for (int row = 0; row < kNum; ++row) {
      std::int32_t totals[kTileOutputs];
      store(sums[row], totals);
      write_tile(totals, weights.scales, rows.scales[row], weights, tile, outputs, row);
    }
  }

  template <int kNum>
  static void few_rows_4(const Weights& weights, const std::uint8_t* codes, const Rows& rows, const Outputs& outputs,
                         std::int64_t tile) {
    const std::int64_t padded = weights.padded_k(), blocks = weights.k / weights.block;
    float totals[kNum][kTileOutputs] = {};
    const std::uint8_t* from = codes;
    for (std::int64_t block = 0; block < blocks; ++block) {
      typename Words::Accumulator sums[kNum][kParts];
      clear(sums);
      const std::int16_t* q = rows.q + block * weights.block;
      for (std::int64_t k = 0; k < weights.block; k += 2 * kGroup, from += kGroup * kTileOutputs) {
        __builtin_prefetch(from + 1024);
        Widened w;
        for (int part = 0; part < kParts; ++part) w[part] = Words::low(from + part * Words::kOutputs * kGroup);
        step<kNum>(sums, w, q + k, padded);
        for (int part = 0; part < kParts; ++part) w[part] = Words::high(from + part * Words::kOutputs * kGroup);
        step<kNum>(sums, w, q + k + kGroup, padded);
      }
      for (int row = 0; row < kNum; ++row) add_block(sums[row], weights, rows.sums[row * blocks + block], block, tile, totals[row]);
    }
    for (int row = 0; row < kNum; ++row)
      write_tile(totals[row], nullptr, rows.scales[row], weights, tile, outputs, row);
  }

  static void many_rows_8(const Weights& weights, const std::uint8_t* codes, const Rows& rows, std::int64_t first,
                          std::int64_t count, const Outputs& outputs, std::int64_t tile) {
    const std::int64_t padded = weights.padded_k();
    Widened widened[kDepth / kGroup];
    std::int32_t totals[kRowsAtOnce][kTileOutputs];
    for (std::int64_t row = 0; row < count; ++row)
      for (int i = 0; i < kTileOutputs; ++i) totals[row][i] = 0;
    const auto* from = reinterpret_cast<const std::int8_t*>(codes);
    for (std::int64_t begin = 0; begin < padded; begin += kDepth) {
      const std::int64_t depth = padded - begin < kDepth ? padded - begin : kDepth;
      for (std::int64_t group = 0; group < depth / kGroup; ++group, from += kGroup * kTileOutputs) {
        __builtin_prefetch(from + 1024);
        for (int part = 0; part < kParts; ++part)
          widened[group][part] = Words::widen(from + part * Words::kOutputs * kGroup);
      }
      each_rows(count, [&](auto number, std::int64_t row) {
        constexpr int kNum = decltype(number)::value;
        typename Words::Accumulator sums[kNum][kParts];
        clear(sums);
        const std::int16_t* q = rows.q + (first + row) * padded + begin;
        for (std::int64_t group = 0; group < depth / kGroup; ++group)
          step<kNum>(sums, widened[group], q + group * kGroup, padded);
        for (int i = 0; i < kNum; ++i) {
          std::int32_t part[kTileOutputs];
          store(sums[i], part);
          for (int j = 0; j < kTileOutputs; ++j) totals[row + i][j] += part[j];
        }
      });
    }
    for (std::int64_t row = 0; row < count; ++row)
      write_tile(totals[row], weights.scales, rows.scales[first + row], weights, tile, outputs, first + row);
  }

  static void many_rows_4(const Weights& weights, const std::uint8_t* codes, const Rows& rows, std::int64_t first,
                          std::int64_t count, const Outputs& outputs, std::int64_t tile) {
    const std::int64_t padded = weights.padded_k(), blocks = weights.k / weights.block;
    Widened widened[kDepth / kGroup];
    float totals[kRowsAtOnce][kTileOutputs];
    for (std::int64_t row = 0; row < count; ++row)
      for (int i = 0; i < kTileOutputs; ++i) totals[row][i] = 0;
    const std::uint8_t* from = codes;
    for (std::int64_t block = 0; block < blocks; ++block) {
      for (std::int64_t group = 0; group < weights.block / kGroup; group += 2, from += kGroup * kTileOutputs) {
        __builtin_prefetch(from + 1024);
        for (int part = 0; part < kParts; ++part) {
          widened[group][part] = Words::low(from + part * Words::kOutputs * kGroup);
          widened[group + 1][part] = Words::high(from + part * Words::kOutputs * kGroup);
        }
      }
      each_rows(count, [&](auto number, std::int64_t row) {
        constexpr int kNum = decltype(number)::value;
        typename Words::Accumulator sums[kNum][kParts];
        clear(sums);
        const std::int16_t* q = rows.q + (first + row) * padded + block * weights.block;
        for (std::int64_t group = 0; group < weights.block / kGroup; ++group)
          step<kNum>(sums, widened[group], q + group * kGroup, padded);
        for (int i = 0; i < kNum; ++i) add_block(sums[i], weights, rows.sums[(first + row + i) * blocks + block], block, tile, totals[row + i]);
      });
    }
    for (std::int64_t row = 0; row < count; ++row)
      write_tile(totals[row], nullptr, rows.scales[first + row], weights, tile, outputs, first + row);
  }

  template <int kValue>
  struct Number {
    static constexpr int value = kValue;
  };

  // f(Number<how many>, first) over all rows, as many at once as there are registers for.
  template <class F>
  static void each_rows(std::int64_t count, F f) {
    std::int64_t row = 0;
    for (; row + Words::kRows <= count; row += Words::kRows) f(Number<Words::kRows>{}, row);
    rest<Words::kRows - 1>(count - row, row, f);
  }

  // The last rows, fewer than kRows.
  template <int kNum, class F>
  static void rest(std::int64_t count, std::int64_t row, F f) {
    if constexpr (kNum > 0) {
      if (count == kNum) return f(Number<kNum>{}, row);
      rest<kNum - 1>(count, row, f);
    }
  }

  template <int kNum>
  static void clear(typename Words::Accumulator (&sums)[kNum][kParts]) {
    for (int row = 0; row < kNum; ++row)
      for (int part = 0; part < kParts; ++part) sums[row][part] = Words::zero();
  }

  template <int kNum>
  static __attribute__((always_inline)) void step(typename Words::Accumulator (&sums)[kNum][kParts],
                                                         const Widened& w, const std::int16_t* q,
                                                         std::int64_t stride) {
    for (int row = 0; row < kNum; ++row) {
      const auto a = Words::load(q + row * stride);
      for (int part = 0; part < kParts; ++part) {
        sums[row][part] = Words::dot(sums[row][part], w[part], a);
        Words::keep(sums[row][part]);
      }
    }
  }

  static void store(const typename Words::Accumulator (&sums)[kParts], std::int32_t* totals) {
    for (int part = 0; part < kParts; ++part) Words::store(sums[part], totals + part * Words::kOutputs);
  }

  // The codes are stored as code + 8, so 8 times the block's activations are too much.
  static void add_block(const typename Words::Accumulator (&sums)[kParts], const Weights& weights, std::int32_t row_sum,
                        std::int64_t block, std::int64_t tile, float* totals) {
    std::int32_t part[kTileOutputs];
    store(sums, part);
    const float* scales = weights.scales + block * weights.padded_n() + tile * kTileOutputs;
    const std::int32_t excess = 8 * row_sum;
    for (int i = 0; i < kTileOutputs; ++i) totals[i] += static_cast<float>(part[i] - excess) * scales[i];
  }
};

}  // namespace
}  // namespace andrea::cpu
