// One marker for functions that g++ and nvcc both compile. Owns nothing else.
#pragma once

#if defined(__CUDACC__)
#define ANDREA_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define ANDREA_HOST_DEVICE inline __attribute__((always_inline))
#endif
