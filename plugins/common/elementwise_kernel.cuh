// The kernel of every elementwise operator, and its launcher; an operator's maths is a template argument. Included by an
// operator's kernel.cu, which nvcc compiles into the plugin and g++ for the tests.
//
// `Maths<Storage>::apply` is float -> float, the maths of one element of that storage type.
#pragma once

#include <cstdint>

#include "common/cuda_api.h"
#include "common/elementwise_grid.h"
#include "common/host_device.h"
#include "common/launch.h"
#include "common/storage.h"

namespace andrea {

struct alignas(kPackBytes) Pack {
  std::uint32_t words[kPackBytes / sizeof(std::uint32_t)];
};

template <typename Maths, typename Storage>
ANDREA_HOST_DEVICE typename Storage::Bits apply_to_element(typename Storage::Bits bits)
{
  return Storage::store(Maths::apply(Storage::load(bits)));
}

template <typename Maths, typename Storage>
ANDREA_HOST_DEVICE std::uint32_t apply_to_word(std::uint32_t word)
{
  if constexpr (Storage::kElementsPerWord == 1) {
    return apply_to_element<Maths, Storage>(word);
  } else {
    using Bits = typename Storage::Bits;
    float const first = Maths::apply(Storage::load(static_cast<Bits>(word & 0xFFFFU)));
    float const second = Maths::apply(Storage::load(static_cast<Bits>(word >> 16U)));
    return Storage::store_pair(first, second);
  }
}

template <typename Maths, typename Storage>
ANDREA_HOST_DEVICE void apply_to_pack(Pack& pack)
{
#pragma unroll
  for (std::uint32_t& word : pack.words) {
    word = apply_to_word<Maths, Storage>(word);
  }
}

// Four ranges, one after the other: tiles of kPacks packs per thread, the packs left over from them, and the single
// elements before and after the packs. Only the first takes time in a long array; the others are kept rolled up.
template <typename Maths, typename Storage, std::int32_t kPacks>
__global__ void __launch_bounds__(kThreadsPerBlock, kMinBlocksPerMultiprocessor)
    elementwise_kernel(typename Storage::Bits const* input, typename Storage::Bits* output, Split split)
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
      apply_to_pack<Maths, Storage>(packs[k]);
      output_packs[tile + k * kThreadsPerBlock + threadIdx.x] = packs[k];
    }
  }
#pragma unroll 1
  for (std::int64_t i = packs_in_tiles + thread; i < split.packs; i += num_threads) {
    Pack pack = input_packs[i];
    apply_to_pack<Maths, Storage>(pack);
    output_packs[i] = pack;
  }
#pragma unroll 1
  for (std::int64_t i = thread; i < split.head; i += num_threads) {
    output[i] = apply_to_element<Maths, Storage>(input[i]);
  }
#pragma unroll 1
  for (std::int64_t i = split.head + split.packs * kPerPack + thread; i < split.count; i += num_threads) {
    output[i] = apply_to_element<Maths, Storage>(input[i]);
  }
}

template <typename Maths, typename Storage>
cudaError_t launch_storage(void const* input, void* output, std::int64_t count, DeviceLimits const& limits,
                           cudaStream_t stream) noexcept
{
  using Bits = typename Storage::Bits;
  Split const split = split_from_addresses(reinterpret_cast<std::uintptr_t>(input),
                                           reinterpret_cast<std::uintptr_t>(output), count, sizeof(Bits));
  Grid const grid = grid_from_split(split, limits.num_multiprocessors, limits.max_threads_per_multiprocessor);
  auto const kernel = grid.packs_per_thread == kPacksLong ? elementwise_kernel<Maths, Storage, kPacksLong>
                                                          : elementwise_kernel<Maths, Storage, kPacksShort>;
  return launch<Bits const*, Bits*, Split>(kernel, grid.num_blocks, kThreadsPerBlock, stream,
                                           static_cast<Bits const*>(input), static_cast<Bits*>(output), split);
}

// An ElementwiseLauncher of these maths for the named storage types; another type is cudaErrorInvalidValue.
template <template <typename> class Maths, typename... Storages>
cudaError_t launch_elementwise(StorageType type, void const* input, void* output, std::int64_t count,
                               DeviceLimits const& limits, cudaStream_t stream) noexcept
{
  if (count == 0) {
    return cudaSuccess;
  }
  if (count < 0 || input == nullptr || output == nullptr || limits.num_multiprocessors < 1) {
    return cudaErrorInvalidValue;
  }
  using Launcher = cudaError_t (*)(void const*, void*, std::int64_t, DeviceLimits const&, cudaStream_t) noexcept;
  Launcher launcher = nullptr;
  ((launcher = Storages::kType == type ? launch_storage<Maths<Storages>, Storages> : launcher), ...);
  return launcher == nullptr ? cudaErrorInvalidValue : launcher(input, output, count, limits, stream);
}

}  // namespace andrea
