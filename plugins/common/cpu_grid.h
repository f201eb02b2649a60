// CUDA for g++, as far as the plugins use it: a kernel's own source runs on the CPU, one thread of the grid after the
// other, on a device whose size the caller states.
//
// Enough for kernels whose threads neither share memory nor wait for each other. Serves the tests; the library that
// ships never sees this file.
#pragma once

#include <cstdint>

// The names are CUDA's. NOLINTBEGIN(*-reserved-identifier,cert-dcl*)
#define __global__
#define __launch_bounds__(...)
// NOLINTEND(*-reserved-identifier,cert-dcl*)

using cudaStream_t = struct CUstream_st*;
enum cudaError_t : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorNoDevice = 100,
};
enum cudaDeviceAttr : int { cudaDevAttrMultiProcessorCount = 16, cudaDevAttrMaxThreadsPerMultiProcessor = 39 };

// A test program that defines it is told of every question about the device.
extern "C" __attribute__((weak, visibility("default"))) void andrea_on_device_query();

namespace andrea::cpu_grid {

inline void note_query()
{
  if (andrea_on_device_query != nullptr) {
    andrea_on_device_query();
  }
}

// The device the stand-in pretends to be. No multiprocessors: no device.
struct Device {
  int num_multiprocessors = 4;
  int max_threads_per_multiprocessor = 2048;
};

inline Device device;

struct Index {
  std::uint32_t x = 0;
};

// The position of the running thread, and which blocks of the grid are walked: all, unless a test narrows it.
struct Position {
  Index block_index;
  Index block_size;
  Index grid_size;
  Index thread_index;
};

inline thread_local Position position;

struct Window {
  std::uint32_t first_block = 0;
  std::uint32_t end_block = 0xFFFFFFFFU;
};

inline thread_local Window window;

template <typename Kernel, typename... Arguments>
cudaError_t walk(Kernel kernel, std::int32_t num_blocks, std::int32_t num_threads, Arguments... arguments)
{
  if (num_blocks < 1 || num_threads < 1 || num_threads > 1024) {
    return cudaErrorInvalidConfiguration;
  }
  position.grid_size.x = static_cast<std::uint32_t>(num_blocks);
  position.block_size.x = static_cast<std::uint32_t>(num_threads);
  for (std::uint32_t block = window.first_block; block < position.grid_size.x && block < window.end_block; ++block) {
    position.block_index.x = block;
    for (std::uint32_t thread = 0; thread < position.block_size.x; ++thread) {
      position.thread_index.x = thread;
      kernel(arguments...);
    }
  }
  return cudaSuccess;
}

}  // namespace andrea::cpu_grid

inline cudaError_t cudaGetDevice(int* index)
{
  andrea::cpu_grid::note_query();
  *index = 0;
  return andrea::cpu_grid::device.num_multiprocessors > 0 ? cudaSuccess : cudaErrorNoDevice;
}

inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int /*index*/)
{
  andrea::cpu_grid::note_query();
  *value = attribute == cudaDevAttrMultiProcessorCount ? andrea::cpu_grid::device.num_multiprocessors
                                                       : andrea::cpu_grid::device.max_threads_per_multiprocessor;
  return cudaSuccess;
}

inline char const* cudaGetErrorString(cudaError_t error)
{
  return error == cudaErrorNoDevice ? "no CUDA-capable device is detected" : "error of the CPU grid";
}

#define blockIdx (::andrea::cpu_grid::position.block_index)
#define blockDim (::andrea::cpu_grid::position.block_size)
#define gridDim (::andrea::cpu_grid::position.grid_size)
#define threadIdx (::andrea::cpu_grid::position.thread_index)
