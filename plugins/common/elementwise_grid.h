// How an array is laid over a grid. Plain arithmetic, shared by the launcher, the kernel and the tests.
#pragma once

#include <cstdint>

#include "common/host_device.h"

// The numbers that timings on a GPU may contradict. Defined from outside only to time others (tests/gpu/part_variants.py).
#if !defined(ANDREA_MIN_BLOCKS_PER_MULTIPROCESSOR)
#define ANDREA_MIN_BLOCKS_PER_MULTIPROCESSOR 6
#endif
#if !defined(ANDREA_PACKS_LONG)
#define ANDREA_PACKS_LONG 2
#endif
#if !defined(ANDREA_MAX_WAVES)
#define ANDREA_MAX_WAVES 8
#endif

namespace andrea {

inline constexpr std::int32_t kThreadsPerBlock = 256;
inline constexpr std::int32_t kPackBytes = 16;  // one load or store instruction of a thread

// Blocks that fit on a multiprocessor at least: 1536 threads, which is all that 8.6, 8.9 and 12.0 have, and three
// quarters of what 8.0 and 9.0 have. It leaves 40 registers a thread, with which the compiler issues all of a thread's
// loads before its arithmetic; left to itself it delays some of them to save registers.
inline constexpr std::int32_t kMinBlocksPerMultiprocessor = ANDREA_MIN_BLOCKS_PER_MULTIPROCESSOR;

// Packs a thread has in flight before it computes. Two times 16 bytes from each of 1536 threads are 48 KiB under way
// per multiprocessor, above the 25 KiB that latency times bandwidth asks for on an H200 (0.7 us, 4.8 TB/s over 132).
// Arrays too short to give every multiprocessor such a tile use one pack, to spread over more of them.
inline constexpr std::int32_t kPacksLong = ANDREA_PACKS_LONG;
inline constexpr std::int32_t kPacksShort = 1;

// Waves of resident blocks a launch is limited to; beyond, blocks walk on with the grid as their stride. Several, so
// that the blocks of the last wave, which run while others idle, are a small part of the whole.
inline constexpr std::int64_t kMaxWaves = ANDREA_MAX_WAVES;

// Which elements are read one by one and which in packs of kPackBytes:
// [0, head) singly, [head, head + packs * per_pack) in packs, the rest singly.
struct Split {
  std::int64_t count = 0;
  std::int64_t head = 0;
  std::int64_t packs = 0;
};

// The split of `count` elements of `element_bytes` each at these addresses. Packs need both arrays to reach a 16-byte
// boundary at the same element; where they do not, everything is single.
inline Split split_from_addresses(std::uintptr_t input, std::uintptr_t output, std::int64_t count,
                                  std::int64_t element_bytes)
{
  auto const pack = static_cast<std::uintptr_t>(kPackBytes);
  if (input % pack != output % pack || input % static_cast<std::uintptr_t>(element_bytes) != 0) {
    return Split{count, count, 0};
  }
  auto const bytes_to_boundary = static_cast<std::int64_t>((pack - input % pack) % pack);
  std::int64_t const to_boundary = bytes_to_boundary / element_bytes;
  std::int64_t const head = to_boundary < count ? to_boundary : count;
  std::int64_t const per_pack = kPackBytes / element_bytes;
  return Split{count, head, (count - head) / per_pack};
}

struct Grid {
  std::int32_t num_blocks = 0;
  std::int32_t packs_per_thread = 0;
};

inline Grid grid_from_split(Split const& split, std::int32_t num_multiprocessors,
                            std::int32_t max_threads_per_multiprocessor)
{
  std::int64_t const items = split.packs > 0 ? split.packs : split.count;  // what a thread takes at a time
  std::int64_t const threads = kThreadsPerBlock;
  bool const is_long = split.packs >= num_multiprocessors * threads * kPacksLong;
  std::int64_t const packs_per_thread = is_long ? kPacksLong : kPacksShort;
  std::int64_t const tile = threads * packs_per_thread;
  std::int64_t const wanted = (items + tile - 1) / tile;
  std::int64_t const resident = (max_threads_per_multiprocessor + threads - 1) / threads;
  std::int64_t const limit = kMaxWaves * resident * num_multiprocessors;
  std::int64_t const blocks = wanted < limit ? wanted : limit;
  return Grid{static_cast<std::int32_t>(blocks > 1 ? blocks : 1), static_cast<std::int32_t>(packs_per_thread)};
}

}  // namespace andrea
