// The GELU kernel and its launcher. nvcc compiles this file into the plugin; g++ compiles the same file for the tests.
#include "gelu/kernel.h"

#include "common/launch.h"
#include "gelu/math.h"
#include "gelu/params.h"

namespace andrea::gelu {
namespace {

#if defined(__CUDACC__)
using Approximations = DeviceApproximations;
#else
using Approximations = ModelledApproximations;
#endif

// The fp32 maths of each storage type.
template <typename Storage>
struct Maths;

template <>
struct Maths<Fp32> {
  static ANDREA_HOST_DEVICE float apply(float x) { return gelu_fp32(x); }
};

template <>
struct Maths<Fp16> {
  static ANDREA_HOST_DEVICE float apply(float x) { return gelu_16bit<0>(x, Approximations{}); }
};

template <>
struct Maths<Bf16> {
  static ANDREA_HOST_DEVICE float apply(float x) { return gelu_16bit<12>(x, Approximations{}); }
};

struct alignas(kPackBytes) Pack {
  std::uint32_t words[kPackBytes / sizeof(std::uint32_t)];
};

template <typename Storage>
ANDREA_HOST_DEVICE std::uint32_t apply_to_word(std::uint32_t word)
{
  if constexpr (Storage::kElementsPerWord == 1) {
    return Storage::store(Maths<Storage>::apply(Storage::load(word)));
  } else {
    using Bits = typename Storage::Bits;
    float const first = Maths<Storage>::apply(Storage::load(static_cast<Bits>(word & 0xFFFFU)));
    float const second = Maths<Storage>::apply(Storage::load(static_cast<Bits>(word >> 16U)));
    return Storage::store_pair(first, second);
  }
}

template <typename Storage>
ANDREA_HOST_DEVICE void apply_to_pack(Pack& pack)
{
#pragma unroll
  for (std::uint32_t& word : pack.words) {
    word = apply_to_word<Storage>(word);
  }
}

// Four ranges, one after the other: tiles of kPacks packs per thread, the packs left over from them, and the single
// elements before and after the packs. Only the first takes time in a long array; the others are kept rolled up.
template <typename Storage, std::int32_t kPacks>
__global__ void __launch_bounds__(kThreadsPerBlock, kMinBlocksPerMultiprocessor)
    gelu_kernel(typename Storage::Bits const* input, typename Storage::Bits* output, Split split)
{
  constexpr std::int64_t kPerPack = kPackBytes / static_cast<std::int64_t>(sizeof(typename Storage::Bits));
  constexpr std::int64_t kTile = static_cast<std::int64_t>(kThreadsPerBlock) * kPacks;
  std::int64_t const num_threads = static_cast<std::int64_t>(gridDim.x) * kThreadsPerBlock;
  std::int64_t const thread = static_cast<std::int64_t>(blockIdx.x) * kThreadsPerBlock + threadIdx.x;
  std::int64_t const packs_in_tiles = split.packs / kTile * kTile;

  auto const* const input_packs = reinterpret_cast<Pack const*>(input + split.head);
  auto* const output_packs = reinterpret_cast<Pack*>(output + split.head);
#pragma unroll 1
  for (std::int64_t tile = blockIdx.x * kTile; tile < packs_in_tiles; tile += gridDim.x * kTile) {
    Pack packs[kPacks];
#pragma unroll
    for (std::int64_t k = 0; k < kPacks; ++k) {
      packs[k] = input_packs[tile + k * kThreadsPerBlock + threadIdx.x];
    }
#pragma unroll
    for (std::int64_t k = 0; k < kPacks; ++k) {
      apply_to_pack<Storage>(packs[k]);
      output_packs[tile + k * kThreadsPerBlock + threadIdx.x] = packs[k];
    }
  }
#pragma unroll 1
  for (std::int64_t i = packs_in_tiles + thread; i < split.packs; i += num_threads) {
    Pack pack = input_packs[i];
    apply_to_pack<Storage>(pack);
    output_packs[i] = pack;
  }
#pragma unroll 1
  for (std::int64_t i = thread; i < split.head; i += num_threads) {
    output[i] = Storage::store(Maths<Storage>::apply(Storage::load(input[i])));
  }
#pragma unroll 1
  for (std::int64_t i = split.head + split.packs * kPerPack + thread; i < split.count; i += num_threads) {
    output[i] = Storage::store(Maths<Storage>::apply(Storage::load(input[i])));
  }
}

template <typename Storage>
cudaError_t launch_storage(void const* input, void* output, std::int64_t count, DeviceLimits const& limits,
                           cudaStream_t stream) noexcept
{
  using Bits = typename Storage::Bits;
  Split const split = split_from_addresses(reinterpret_cast<std::uintptr_t>(input),
                                           reinterpret_cast<std::uintptr_t>(output), count, sizeof(Bits));
  Grid const grid = grid_from_split(split, limits.num_multiprocessors, limits.max_threads_per_multiprocessor);
  auto const kernel =
      grid.packs_per_thread == kPacksLong ? gelu_kernel<Storage, kPacksLong> : gelu_kernel<Storage, kPacksShort>;
  return launch<Bits const*, Bits*, Split>(kernel, grid.num_blocks, kThreadsPerBlock, stream,
                                           static_cast<Bits const*>(input), static_cast<Bits*>(output), split);
}

}  // namespace

cudaError_t launch_gelu(StorageType type, void const* input, void* output, std::int64_t count,
                        DeviceLimits const& limits, cudaStream_t stream) noexcept
{
  if (count == 0) {
    return cudaSuccess;
  }
  if (count < 0 || input == nullptr || output == nullptr || limits.num_multiprocessors < 1) {
    return cudaErrorInvalidValue;
  }
  switch (type) {
    case StorageType::kFp32:
      return launch_storage<Fp32>(input, output, count, limits, stream);
    case StorageType::kFp16:
      return launch_storage<Fp16>(input, output, count, limits, stream);
    case StorageType::kBf16:
      return launch_storage<Bf16>(input, output, count, limits, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace andrea::gelu
