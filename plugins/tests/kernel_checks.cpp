// Runs the kernel's own source over the CPU grid: every element is the maths of its input, and nothing else is touched.
//
//   kernel_checks           lengths around every boundary, all alignments of both arrays, several devices
//   kernel_checks huge      2^31 + 5 elements, the blocks around the first, the 2^31st and the last element
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "gelu/kernel.h"
#include "gelu/math.h"
#include "common/elementwise_grid.h"
#include "tests/checks.h"

namespace andrea::tests {
namespace {

template <typename Storage>
struct Reference;

template <>
struct Reference<Fp32> {
  static constexpr StorageType kType = StorageType::kFp32;
  static constexpr char const* kName = "fp32";
  static float apply(float x) { return gelu::gelu_fp32(x); }
};

template <>
struct Reference<Fp16> {
  static constexpr StorageType kType = StorageType::kFp16;
  static constexpr char const* kName = "fp16";
  static float apply(float x) { return gelu::gelu_16bit<0>(x, gelu::ModelledApproximations{}); }
};

template <>
struct Reference<Bf16> {
  static constexpr StorageType kType = StorageType::kBf16;
  static constexpr char const* kName = "bf16";
  static float apply(float x) { return gelu::gelu_16bit<12>(x, gelu::ModelledApproximations{}); }
};

template <typename Storage>
typename Storage::Bits expected(typename Storage::Bits bits)
{
  return Storage::store(Reference<Storage>::apply(Storage::load(bits)));
}

// The element at index i of every input array: all bit patterns come up, special values among them.
template <typename Bits>
Bits pattern(std::int64_t i)
{
  auto const mixed = (static_cast<std::uint64_t>(i) + 1U) * 0x9E3779B97F4A7C15ULL;
  return static_cast<Bits>(mixed >> (64U - 8U * sizeof(Bits)));
}

// Sized exactly, so that the address sanitizer sees a read or write one element outside.
template <typename Bits>
class Array {
 public:
  Array(std::int64_t count, std::int64_t offset)
      : memory_(static_cast<Bits*>(std::aligned_alloc(64, 64 * ((bytes(count + offset + kGuard) + 63) / 64)))),
        offset_(offset),
        count_(count)
  {
    std::memset(memory_, 0x5A, bytes(count + offset + kGuard));
  }
  Array(Array const&) = delete;
  Array& operator=(Array const&) = delete;
  ~Array() { std::free(memory_); }

  Bits* data() { return memory_ + offset_; }

  // Whether the elements before and after the array still hold what they were filled with.
  bool surroundings_untouched()
  {
    Bits filled{};
    std::memset(&filled, 0x5A, sizeof filled);
    bool untouched = true;
    for (std::int64_t i = 0; i < offset_; ++i) {
      untouched = untouched && memory_[i] == filled;
    }
    for (std::int64_t i = offset_ + count_; i < offset_ + count_ + kGuard; ++i) {
      untouched = untouched && memory_[i] == filled;
    }
    return untouched;
  }

 private:
  static constexpr std::int64_t kGuard = 16;
  static std::size_t bytes(std::int64_t elements) { return static_cast<std::size_t>(elements) * sizeof(Bits); }

  Bits* memory_;
  std::int64_t offset_;
  std::int64_t count_;
};

template <typename Storage>
void check_array(Checks& checks, std::int64_t count, std::int64_t input_offset, std::int64_t output_offset,
                 DeviceLimits const& limits)
{
  using Bits = typename Storage::Bits;
  Array<Bits> input(count, input_offset);
  Array<Bits> output(count, output_offset);
  for (std::int64_t i = 0; i < count; ++i) {
    input.data()[i] = pattern<Bits>(i);
  }
  cudaError_t const error =
      gelu::launch_gelu(Reference<Storage>::kType, input.data(), output.data(), count, limits, nullptr);
  bool right = error == cudaSuccess && input.surroundings_untouched() && output.surroundings_untouched();
  for (std::int64_t i = 0; i < count; ++i) {
    right = right && output.data()[i] == expected<Storage>(input.data()[i]);
  }
  checks.expect(right, std::string(Reference<Storage>::kName) + " count " + std::to_string(count) + " offsets " +
                           std::to_string(input_offset) + "," + std::to_string(output_offset) + " multiprocessors " +
                           std::to_string(limits.num_multiprocessors));
}

template <typename Storage>
void check_in_place(Checks& checks)
{
  using Bits = typename Storage::Bits;
  constexpr std::int64_t kCount = 5003;
  // Values whose GELU has another GELU, so that an element that is computed twice is seen.
  auto const value = [](std::int64_t i) { return Storage::store(0.5F + static_cast<float>(i % 7) / 8.0F); };
  Array<Bits> array(kCount, 1);
  for (std::int64_t i = 0; i < kCount; ++i) {
    array.data()[i] = value(i);
  }
  DeviceLimits const limits{2, 2048};
  gelu::launch_gelu(Reference<Storage>::kType, array.data(), array.data(), kCount, limits, nullptr);
  bool right = array.surroundings_untouched();
  for (std::int64_t i = 0; i < kCount; ++i) {
    right = right && array.data()[i] == expected<Storage>(value(i));
  }
  checks.expect(right, std::string(Reference<Storage>::kName) + " in place");
}

template <typename Storage>
void check_lengths(Checks& checks)
{
  // One multiprocessor with room for one block walks its 8 blocks many times; 132 is one wave of an H100.
  DeviceLimits const devices[] = {{1, 256}, {3, 1536}, {132, 2048}};
  constexpr std::int64_t kPerPack = kPackBytes / static_cast<std::int64_t>(sizeof(typename Storage::Bits));
  for (DeviceLimits const& limits : devices) {
    for (std::int64_t const count : {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 255, 256, 257, 1023, 4099}) {
      for (std::int64_t offset = 0; offset <= kPerPack; ++offset) {
        check_array<Storage>(checks, count, offset, offset, limits);
        check_array<Storage>(checks, count, offset, 0, limits);
        check_array<Storage>(checks, count, 0, offset, limits);
      }
    }
  }
  // Long enough for the two-pack kernel, with a partial last tile, and for many rounds of its grid.
  std::int64_t const tile = kPerPack * kThreadsPerBlock * kPacksLong;
  for (std::int64_t const count : {tile - 1, tile, tile + 1, 3 * tile + 5 * kPerPack + 3, 20 * tile + 1}) {
    check_array<Storage>(checks, count, 0, 0, devices[0]);
    check_array<Storage>(checks, count, 1, 1, devices[0]);
    check_array<Storage>(checks, count, 1, 2, devices[0]);
  }
  check_in_place<Storage>(checks);
}

// Every finite value of a 16-bit type comes back from fp32; half way to the next one goes to the even of the two, and a
// little to either side of half way to the nearer.
template <typename Storage>
void check_conversions(Checks& checks, std::uint16_t infinity)
{
  bool exact = true;
  bool nearest = true;
  for (std::uint16_t bits = 0; bits < infinity; ++bits) {
    auto const next = static_cast<std::uint16_t>(bits + 1);
    float const low = Storage::load(bits);
    // Above the largest finite value, where the next would be, infinity begins.
    float const gap = next == infinity ? low - Storage::load(static_cast<std::uint16_t>(bits - 1))
                                       : Storage::load(next) - low;
    float const half_way = low + gap / 2.0F;
    std::uint32_t const half_way_bits = ieee::bits_from_float(half_way);
    std::uint16_t const even = bits % 2 == 0 ? bits : next;
    exact = exact && Storage::store(low) == bits && Storage::store(-low) == (bits | 0x8000U);
    nearest = nearest && Storage::store(half_way) == even && Storage::store(-half_way) == (even | 0x8000U) &&
              Storage::store(ieee::float_from_bits(half_way_bits - 1)) == bits &&
              Storage::store(ieee::float_from_bits(half_way_bits + 1)) == next;
  }
  checks.expect(exact, std::string(Reference<Storage>::kName) + " values come back from fp32");
  checks.expect(nearest, std::string(Reference<Storage>::kName) + " rounds to nearest, ties to even");
  std::uint32_t const first_and_second = Storage::store(1.0F) | (std::uint32_t{Storage::store(-2.0F)} << 16U);
  checks.expect(Storage::store_pair(1.0F, -2.0F) == first_and_second,
                std::string(Reference<Storage>::kName) + " pairs hold the first element in the lower half");
}

void check_refusals(Checks& checks)
{
  float element = 1.0F;
  DeviceLimits const limits{1, 256};
  auto const launch = [&](StorageType type, void const* input, void* output, std::int64_t count, DeviceLimits device) {
    return gelu::launch_gelu(type, input, output, count, device, nullptr);
  };
  checks.expect(launch(StorageType::kFp32, nullptr, nullptr, 0, DeviceLimits{}) == cudaSuccess, "count 0 is a no-op");
  checks.expect(launch(StorageType::kFp32, nullptr, &element, 1, limits) != cudaSuccess, "null input is refused");
  checks.expect(launch(StorageType::kFp32, &element, nullptr, 1, limits) != cudaSuccess, "null output is refused");
  checks.expect(launch(StorageType::kFp32, &element, &element, -1, limits) != cudaSuccess, "count -1 is refused");
  checks.expect(launch(StorageType::kFp32, &element, &element, 1, DeviceLimits{}) != cudaSuccess,
                "an unknown device is refused");
  checks.expect(launch(static_cast<StorageType>(7), &element, &element, 1, limits) != cudaSuccess,
                "an unknown type is refused");
}

// Address space without memory behind it: pages come into being, as zeros, where they are touched.
template <typename Bits>
Bits* reserve(std::int64_t count)
{
  void* const memory = mmap(nullptr, static_cast<std::size_t>(count) * sizeof(Bits), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<Bits*>(memory);
}

template <typename Storage>
void check_huge(Checks& checks)
{
  using Bits = typename Storage::Bits;
  constexpr std::int64_t kTwoTo31 = 0x80000000;
  constexpr std::int64_t kCount = kTwoTo31 + 5;
  constexpr std::int64_t kPerPack = kPackBytes / static_cast<std::int64_t>(sizeof(Bits));
  constexpr std::int64_t kTile = kPerPack * kThreadsPerBlock * kPacksLong;
  constexpr std::int64_t kLastTile = (kCount / kPerPack * kPerPack - 1) / kTile;
  DeviceLimits const limits{132, 2048};
  std::string const name = std::string(Reference<Storage>::kName) + " 2^31 + 5: ";

  Bits* const input = reserve<Bits>(kCount);
  Bits* const output = reserve<Bits>(kCount);
  checks.expect(input != nullptr && output != nullptr, name + "address space");
  if (input == nullptr || output == nullptr) {
    return;
  }
  Split const split = split_from_addresses(
      reinterpret_cast<std::uintptr_t>(input), reinterpret_cast<std::uintptr_t>(output), kCount, sizeof(Bits));
  std::int64_t const num_blocks = grid_from_split(split, 132, 2048).num_blocks;
  std::int64_t const tiles[] = {0, 1, kTwoTo31 / kTile - 1, kLastTile};
  auto const each_element = [&](std::int64_t tile, auto&& visit) {
    for (std::int64_t i = tile * kTile; i < (tile + 1) * kTile && i < kCount / kPerPack * kPerPack; ++i) {
      visit(i);
    }
  };
  for (std::int64_t const tile : tiles) {
    each_element(tile, [&](std::int64_t i) { input[i] = pattern<Bits>(i); });
  }
  for (std::int64_t i = kCount / kPerPack * kPerPack; i < kCount; ++i) {
    input[i] = pattern<Bits>(i);
  }

  // Block 0, which also owns the single elements of the tail, and the blocks of the chosen tiles.
  for (std::int64_t const tile : tiles) {
    auto const block = static_cast<std::uint32_t>(tile % num_blocks);
    cpu_grid::window = {block, block + 1};
    cudaError_t const error =
        gelu::launch_gelu(Reference<Storage>::kType, input, output, kCount, limits, nullptr);
    checks.expect(error == cudaSuccess, name + "launch");
  }
  cpu_grid::window = {};
  for (std::int64_t const tile : tiles) {
    bool right = true;
    each_element(tile, [&](std::int64_t i) { right = right && output[i] == expected<Storage>(input[i]); });
    checks.expect(right, name + "tile " + std::to_string(tile));
  }
  bool tail_right = true;
  for (std::int64_t i = kCount / kPerPack * kPerPack; i < kCount; ++i) {
    tail_right = tail_right && output[i] == expected<Storage>(input[i]);
  }
  checks.expect(tail_right, name + "tail");
  munmap(input, static_cast<std::size_t>(kCount) * sizeof(Bits));
  munmap(output, static_cast<std::size_t>(kCount) * sizeof(Bits));
}

}  // namespace
}  // namespace andrea::tests

int main(int num_arguments, char const* const* arguments)
{
  andrea::tests::Checks checks;
  if (num_arguments > 1 && std::strcmp(arguments[1], "huge") == 0) {
    andrea::tests::check_huge<andrea::Fp32>(checks);
    andrea::tests::check_huge<andrea::Fp16>(checks);
    andrea::tests::check_huge<andrea::Bf16>(checks);
  } else {
    andrea::tests::check_lengths<andrea::Fp32>(checks);
    andrea::tests::check_lengths<andrea::Fp16>(checks);
    andrea::tests::check_lengths<andrea::Bf16>(checks);
    andrea::tests::check_refusals(checks);
    andrea::tests::check_conversions<andrea::Fp16>(checks, 0x7C00);
    andrea::tests::check_conversions<andrea::Bf16>(checks, 0x7F80);
  }
  return checks.report();
}
