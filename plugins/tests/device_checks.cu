// Runs the kernel on a GPU over odd sizes and alignments and compares with the maths on the host. Small and without any
// library, so that compute-sanitizer gets through it in seconds.
//
//   nvcc -std=c++17 -arch=native -I plugins -o device_checks plugins/tests/device_checks.cu plugins/gelu/kernel.cu
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "common/cuda_api.h"
#include "gelu/kernel.h"
#include "gelu/math.h"
#include "tests/checks.h"

namespace andrea::tests {
namespace {

double gelu_double(double x)
{
  double const u = 0.79788456080286535588 * (x + 0.044715 * x * x * x);
  return x / (1.0 + std::exp(-2.0 * u));
}

// fp32 must give the host's bits. The 16-bit types use approximate instructions: within one step of the exact value.
bool is_right(StorageType type, std::uint32_t input, std::uint32_t output)
{
  if (type == StorageType::kFp32) {
    float const x = ieee::float_from_bits(input);
    float const expected = gelu::gelu_fp32(x);
    return ieee::bits_from_float(expected) == output || (expected != expected && x != x);
  }
  bool const half = type == StorageType::kFp16;
  auto const bits = static_cast<std::uint16_t>(output);
  float const x = half ? float_from_fp16(static_cast<std::uint16_t>(input))
                       : float_from_bf16(static_cast<std::uint16_t>(input));
  auto const exact = static_cast<float>(gelu_double(static_cast<double>(x)));
  std::int32_t const expected = half ? fp16_from_float(exact) : bf16_from_float(exact);
  return std::abs(static_cast<std::int32_t>(bits) - expected) <= 1;
}

// Finite inputs between -20 and 20, and zeros of both signs.
std::uint32_t input_bits(StorageType type, std::int64_t i)
{
  float const x = static_cast<float>((i * 7919) % 4001 - 2000) / 100.0F * (i % 2 == 0 ? 1.0F : -1.0F);
  switch (type) {
    case StorageType::kFp16:
      return fp16_from_float(x);
    case StorageType::kBf16:
      return bf16_from_float(x);
    default:
      return ieee::bits_from_float(x);
  }
}

std::string check(StorageType type, std::int64_t count, std::int64_t input_offset, std::int64_t output_offset,
                  DeviceLimits const& limits)
{
  std::int64_t const bytes = type == StorageType::kFp32 ? 4 : 2;
  std::vector<unsigned char> host(static_cast<std::size_t>(count * bytes));
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t const value = input_bits(type, i);
    std::memcpy(&host[static_cast<std::size_t>(i * bytes)], &value, static_cast<std::size_t>(bytes));
  }
  // Allocated exactly, so that the sanitizer sees one element too many.
  unsigned char* input = nullptr;
  unsigned char* output = nullptr;
  cudaError_t error = cudaMalloc(&input, static_cast<std::size_t>((count + input_offset) * bytes));
  if (error == cudaSuccess) {
    error = cudaMalloc(&output, static_cast<std::size_t>((count + output_offset) * bytes));
  }
  if (error == cudaSuccess) {
    error = cudaMemcpy(input + input_offset * bytes, host.data(), host.size(), cudaMemcpyHostToDevice);
  }
  if (error == cudaSuccess) {
    error = gelu::launch_gelu(type, input + input_offset * bytes, output + output_offset * bytes, count, limits,
                              nullptr);
  }
  std::vector<unsigned char> result(host.size());
  if (error == cudaSuccess) {
    error = cudaMemcpy(result.data(), output + output_offset * bytes, result.size(), cudaMemcpyDeviceToHost);
  }
  cudaFree(input);
  cudaFree(output);
  if (error != cudaSuccess) {
    return cudaGetErrorString(error);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t given = 0;
    std::uint32_t got = 0;
    std::memcpy(&given, &host[static_cast<std::size_t>(i * bytes)], static_cast<std::size_t>(bytes));
    std::memcpy(&got, &result[static_cast<std::size_t>(i * bytes)], static_cast<std::size_t>(bytes));
    if (!is_right(type, given, got)) {
      return "wrong at element " + std::to_string(i);
    }
  }
  return {};
}

}  // namespace
}  // namespace andrea::tests

int main()
{
  using andrea::StorageType;
  andrea::tests::Checks checks;
  andrea::DeviceLimits limits{};
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&limits.num_multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&limits.max_threads_per_multiprocessor, cudaDevAttrMaxThreadsPerMultiProcessor,
                                   device);
  }
  checks.expect(error == cudaSuccess, cudaGetErrorString(error));
  if (error == cudaSuccess) {
    andrea::DeviceLimits const one_multiprocessor{1, 256};  // few blocks: every range is walked in many rounds
    for (StorageType const type : {StorageType::kFp32, StorageType::kFp16, StorageType::kBf16}) {
      for (std::int64_t const count : {1, 7, 8, 9, 255, 256, 257, 4099, 100003}) {
        for (std::int64_t const offset : {0, 1, 3}) {
          for (andrea::DeviceLimits const& device_limits : {limits, one_multiprocessor}) {
            std::string const what = "type " + std::to_string(static_cast<int>(type)) + " count " +
                                     std::to_string(count) + " offset " + std::to_string(offset) + ": ";
            std::string const same = andrea::tests::check(type, count, offset, offset, device_limits);
            checks.expect(same.empty(), what + same);
            std::string const aligned = andrea::tests::check(type, count, offset, 0, device_limits);
            checks.expect(aligned.empty(), (what + "output aligned: ").append(aligned));
          }
        }
      }
    }
  }
  return checks.report();
}
