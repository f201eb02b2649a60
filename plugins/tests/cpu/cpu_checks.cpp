// The linear layer's paths against a reference of plain loops, and against each other: bit for bit.
//
// Every instruction set that this processor has is run, over shapes, options and values drawn from a seed, on two
// threads; buffers have exactly the size they need, so that a sanitizer sees what reads beyond.

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cpu/linear.h"
#include "tests/checks.h"

namespace {

using namespace andrea::cpu;

constexpr int kCases = 400;

struct Case {
  std::int64_t rows, k, n;
  Weights weights;
  bool norm, gelu, residual;
  std::vector<std::uint8_t> codes;  // behind one byte, so that no address is aligned
  std::vector<float> scales, bias, x, gamma, beta, added;
};

std::int32_t code_of(const Case& c, std::int64_t k, std::int64_t n) {
  const std::int64_t tile = n / kTileOutputs, lane = n % kTileOutputs;
  const bool four = c.weights.block != 0;
  const std::int64_t per_group = four ? 2 * kGroup : kGroup;
  const std::int64_t index = ((tile * (c.weights.padded_k() / per_group) + k / per_group) * kTileOutputs + lane) * kGroup +
                             k % kGroup;
  const std::uint8_t byte = c.codes[static_cast<std::size_t>(index) + 1];
  if (!four) return static_cast<std::int8_t>(byte);
  return ((k % per_group < kGroup ? byte : byte >> 4) & 15) - 8;
}

Case draw(std::mt19937& random) {
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  const bool four = pick(0, 1) == 1;
  const std::int64_t blocks[] = {32, 64, 128, 256};
  const std::int64_t block = four ? blocks[pick(0, 3)] : 0;
  const std::int64_t k = four ? block * pick(1, 4) : pick(1, 700), n = pick(1, 70);
  const std::int64_t rows = pick(0, 3) == 0 ? pick(9, 130) : pick(1, 9);
  Weights weights{nullptr, nullptr, nullptr, k, n, block, kLargestActivation};
  Case c{rows,  k, n, weights, pick(0, 1) == 1, pick(0, 1) == 1, pick(0, 1) == 1,
         std::vector<std::uint8_t>(static_cast<std::size_t>(weights.tiles() * weights.tile_bytes() + 1)),
         {}, {}, {}, {}, {}, {}};
  const int kind = static_cast<int>(pick(0, 4));  // 0: all codes at their largest, and all activations
  for (std::uint8_t& byte : c.codes)
    byte = static_cast<std::uint8_t>(kind == 0 ? (four ? 0 : 127) : four ? pick(0, 255) : pick(-127, 127));
  const auto fill = [&](std::vector<float>& to, std::int64_t count, float size) {
    std::normal_distribution<float> normal(0.0f, size);
    to.resize(static_cast<std::size_t>(count));
    for (float& value : to) value = normal(random);
  };
  fill(c.scales, four ? k / block * weights.padded_n() : weights.padded_n(), 1e-2f);
  fill(c.bias, n, 1.0f);
  fill(c.gamma, k, 1.0f);
  fill(c.beta, k, 1.0f);
  fill(c.added, rows * n, 1.0f);
  fill(c.x, rows * k, std::pow(10.0f, static_cast<float>(pick(-20, 20))));
  if (kind == 0) c.norm = false;
  for (std::size_t i = 0; kind == 0 && i < c.x.size(); ++i) c.x[i] = 3.0f;
  const float odd[] = {0.0f, -0.0f, 1e-40f, 1e38f, std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::quiet_NaN()};
  if (kind == 1)  // one value that is not like the others
    c.x[static_cast<std::size_t>(pick(0, rows * k - 1))] = odd[pick(0, 5)];
  if (kind == 2)  // a row of zeros
    std::fill_n(c.x.begin() + pick(0, rows - 1) * k, k, 0.0f);
  // As the exporter bounds it: no sum of an output may leave 32 bits.
  if (!four) c.weights.largest = static_cast<std::int32_t>(
      std::min<std::int64_t>(kLargestActivation, std::numeric_limits<std::int32_t>::max() / (127 * k)));
  return c;
}

std::vector<float> run(const Path& path, const Case& c) {
  Weights weights = c.weights;
  weights.codes = c.codes.data() + 1;
  weights.scales = c.scales.data();
  weights.bias = c.bias.data();
  const std::int64_t blocks = weights.block == 0 ? 0 : c.k / weights.block;
  std::vector<std::int16_t> q(static_cast<std::size_t>(c.rows * weights.padded_k()));
  std::vector<float> scales(static_cast<std::size_t>(c.rows)), y(static_cast<std::size_t>(c.rows * c.n), -1.0f);
  std::vector<std::int32_t> sums(static_cast<std::size_t>(c.rows * blocks));
  const Rows rows{q.data(), scales.data(), sums.data()};
  const Norm norm{c.norm ? c.gamma.data() : nullptr, c.norm ? c.beta.data() : nullptr, 1e-5f};
  const Outputs outputs{y.data(), c.residual ? c.added.data() : nullptr, c.gelu};
  const auto on_two = [](std::int64_t count, auto work) {
    std::thread other(work, count / 2, count);
    work(std::int64_t{0}, count / 2);
    other.join();
  };
  on_two(c.rows, [&](auto first, auto last) { path.prepare(c.x.data(), norm, weights, rows, first, last); });
  on_two(weights.tiles(), [&](auto first, auto last) { path.multiply(weights, rows, c.rows, outputs, first, last); });
  return y;
}

// What linear.h says, in plain loops: exact integers, and floating point in the order that it is written there.
std::vector<float> reference(const Case& c) {
  std::vector<float> y;
  for (std::int64_t row = 0; row < c.rows; ++row) {
    const float* const x = c.x.data() + row * c.k;
    float largest = 0.0f;
    bool finite = true;
    for (std::int64_t k = 0; k < c.k; ++k) {
      finite = finite && std::isfinite(x[k]);
      largest = std::max(largest, std::fabs(x[k]));
    }
    const auto levels = static_cast<float>(c.weights.largest);
    const float inverse = largest < 1e-30f ? 0.0f : levels / largest;
    const float scale = !finite ? std::numeric_limits<float>::quiet_NaN() : largest < 1e-30f ? 0.0f : largest / levels;
    for (std::int64_t n = 0; n < c.n; ++n) {
      const std::int64_t block = c.weights.block == 0 ? c.k : c.weights.block;
      float total = 0.0f, product = 0.0f;
      std::int64_t sum = 0;
      for (std::int64_t k = 0; k < c.k; ++k) {
        if (finite) sum += static_cast<std::int64_t>(std::nearbyint(x[k] * inverse)) * code_of(c, k, n);
        if ((k + 1) % block != 0) continue;
        const float block_scale = c.scales[static_cast<std::size_t>(k / block * c.weights.padded_n() + n)];
        if (c.weights.block == 0)
          product = static_cast<float>(sum) * (scale * block_scale);
        else
          total += static_cast<float>(sum) * block_scale;
        sum = 0;
      }
      if (c.weights.block != 0) product = total * scale;
      product += c.bias[static_cast<std::size_t>(n)];
      if (c.residual) product += c.added[static_cast<std::size_t>(row * c.n + n)];
      y.push_back(product);
    }
  }
  return y;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0 && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  return a.size() == b.size();
}

}  // namespace

int main() {
  andrea::tests::Checks checks;
  std::mt19937 random(20261207);
  const Path* portable = nullptr;
  for (const Path* const* path = all_paths(); *path != nullptr; ++path) portable = *path;
  for (int i = 0; i < kCases; ++i) {
    const Case c = draw(random);
    const std::vector<float> expected = run(*portable, c);
    const std::string what = "case " + std::to_string(i) + ": " + std::to_string(c.rows) + " rows, K " +
                             std::to_string(c.k) + ", N " + std::to_string(c.n) + ", block " +
                             std::to_string(c.weights.block);
    if (!c.norm && !c.gelu) checks.expect(same_bits(expected, reference(c)), what + ": portable is not the reference");
    for (const Path* const* path = all_paths(); *path != nullptr; ++path)
      if (*path != portable && (*path)->is_supported())
        checks.expect(same_bits(run(**path, c), expected), what + ": " + (*path)->name + " is not portable's");
  }
  for (const Path* const* path = all_paths(); *path != nullptr; ++path)
    if ((*path)->is_supported()) std::fprintf(stderr, "%s\n", (*path)->name);
  return checks.report();
}
