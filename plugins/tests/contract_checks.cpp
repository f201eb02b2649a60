// Walks a plugin library through everything TensorRT asks of it, from creators to enqueue, on a machine without a GPU.
//
//   contract_checks LIBRARY NAME VERSION NAMESPACE cpu      the library was built over the CPU grid: enqueue computes
//   contract_checks LIBRARY NAME VERSION NAMESPACE no-gpu   the library that ships, no device here: enqueue says so
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "common/storage.h"
#include "gelu/math.h"
#include "tests/checks.h"
#include "tests/plugin_harness.h"

namespace {

// TensorRT calls enqueue for each inference: it must neither allocate nor ask the device. Counted are what this
// process, the plugin library included, takes from malloc, calloc, realloc, aligned_alloc and posix_memalign (under the
// address sanitizer: from operator new alone), and every question a library built over the CPU grid asks.
std::size_t volatile num_allocations = 0;  // the compiler takes an allocation for a call that changes nothing of ours
std::size_t num_queries = 0;

}  // namespace

#define ANDREA_REPLACES extern "C" __attribute__((visibility("default")))

ANDREA_REPLACES void andrea_on_device_query();
void andrea_on_device_query() { ++num_queries; }

#if defined(__SANITIZE_ADDRESS__)
// The sanitizer has its own malloc: operator new is what can be counted.
__attribute__((visibility("default"))) void* operator new(std::size_t size, std::nothrow_t const& /*tag*/) noexcept
{
  ++num_allocations;
  return std::malloc(size);
}
__attribute__((visibility("default"))) void* operator new(std::size_t size)
{
  if (void* const memory = operator new(size, std::nothrow)) {
    return memory;
  }
  throw std::bad_alloc();
}
__attribute__((visibility("default"))) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((visibility("default"))) void operator delete(void* memory, std::size_t /*size*/) noexcept
{
  std::free(memory);
}
#else
// operator new comes here too. The names are glibc's. NOLINTBEGIN(*-reserved-identifier,cert-dcl*)
extern "C" void* __libc_malloc(std::size_t size);
extern "C" void* __libc_calloc(std::size_t count, std::size_t size);
extern "C" void* __libc_realloc(void* memory, std::size_t size);
extern "C" void* __libc_memalign(std::size_t alignment, std::size_t size);
// NOLINTEND(*-reserved-identifier,cert-dcl*)

ANDREA_REPLACES void* malloc(std::size_t size) noexcept
{
  ++num_allocations;
  return __libc_malloc(size);
}
ANDREA_REPLACES void* calloc(std::size_t count, std::size_t size) noexcept
{
  ++num_allocations;
  return __libc_calloc(count, size);
}
ANDREA_REPLACES void* realloc(void* memory, std::size_t size) noexcept
{
  ++num_allocations;
  return __libc_realloc(memory, size);
}
ANDREA_REPLACES void* aligned_alloc(std::size_t alignment, std::size_t size) noexcept
{
  ++num_allocations;
  return __libc_memalign(alignment, size);
}
ANDREA_REPLACES int posix_memalign(void** memory, std::size_t alignment, std::size_t size) noexcept
{
  ++num_allocations;
  *memory = __libc_memalign(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}
#endif

namespace andrea::tests {
namespace {

using nvinfer1::DataType;
using nvinfer1::TensorFormat;
using nvinfer1::TensorRTPhase;

constexpr DataType kTaken[] = {DataType::kFLOAT, DataType::kHALF, DataType::kBF16};
// Above the highest enumerators of TensorRT 11.1: a newer version may ask about types and formats unknown today.
constexpr std::int32_t kTypesAsked = 16;
constexpr std::int32_t kFormatsAsked = 16;

bool is_taken(DataType type)
{
  return type == DataType::kFLOAT || type == DataType::kHALF || type == DataType::kBF16;
}

std::size_t element_bytes(DataType type) { return type == DataType::kFLOAT ? 4 : 2; }

std::vector<std::vector<std::int64_t>> shapes()
{
  return {{},           {1},       {7},          {0},          {3, 0, 5},          {2, 3},
          {1, 128, 96}, {2, 3, 5}, {1, 2, 3, 4}, {2, 1, 3, 2, 5}, {1, 1, 1, 2, 1, 1, 3, 1}};
}

std::string text(std::vector<std::int64_t> const& shape)
{
  std::string result = "[";
  for (std::int64_t const extent : shape) {
    result += std::to_string(extent) + " ";
  }
  return result + "]";
}

bool names_match(nvinfer1::AsciiChar const* answer, char const* wanted) { return std::strcmp(answer, wanted) == 0; }

void check_creator(Checks& checks, PluginLibrary const& library, char const* name, char const* version,
                   char const* space)
{
  checks.expect(library.creators().size() == 1, "one creator");
  nvinfer1::IPluginCreatorV3One& creator = *library.creators().front();
  checks.expect(names_match(creator.getPluginName(), name), "creator's name");
  checks.expect(names_match(creator.getPluginVersion(), version), "creator's version");
  checks.expect(names_match(creator.getPluginNamespace(), space), "creator's namespace");
  checks.expect(creator.getAPILanguage() == nvinfer1::APILanguage::kCPP, "creator's language");
  checks.expect(creator.getInterfaceInfo().major == 1, "creator's interface version");
  checks.expect(creator.getFieldNames() != nullptr && creator.getFieldNames()->nbFields == 0, "no attributes");

  float const value = 0.5F;
  nvinfer1::PluginField const field{"alpha", &value, nvinfer1::PluginFieldType::kFLOAT32, 1};
  nvinfer1::PluginFieldCollection const unknown{1, &field};
  checks.expect(creator.createPlugin("node", &unknown, TensorRTPhase::kBUILD) == nullptr, "unknown field refused");
  Plugin const unnamed = plugin_from_pointer(creator.createPlugin(nullptr, nullptr, TensorRTPhase::kBUILD));
  checks.expect(unnamed.owner != nullptr, "no node name and no field list");
}

void check_identity(Checks& checks, Plugin const& plugin, char const* name, char const* version, char const* space)
{
  checks.expect(names_match(plugin.core->getPluginName(), name), "plugin's name");
  checks.expect(names_match(plugin.core->getPluginVersion(), version), "plugin's version");
  checks.expect(names_match(plugin.core->getPluginNamespace(), space), "plugin's namespace");
  checks.expect(names_match(plugin.owner->getInterfaceInfo().kind, "PLUGIN"), "plugin's interface");
  checks.expect(names_match(plugin.core->getInterfaceInfo().kind, "PLUGIN_V3ONE_CORE"), "core interface");
  checks.expect(names_match(plugin.build->getInterfaceInfo().kind, "PLUGIN_V3ONE_BUILD"), "build interface");
  checks.expect(names_match(plugin.runtime->getInterfaceInfo().kind, "PLUGIN_V3ONE_RUNTIME"), "runtime interface");
  checks.expect(plugin.owner->getCapabilityInterface(static_cast<nvinfer1::PluginCapabilityType>(9)) == nullptr,
                "an unknown capability is null");
  checks.expect(plugin.build->getNbOutputs() == 1, "one output");
  checks.expect(plugin.build->getWorkspaceSize(nullptr, 1, nullptr, 1) == 0, "no workspace");
  checks.expect(plugin.build->getNbTactics() == 0, "no tactics of its own");
}

void check_types(Checks& checks, Plugin const& plugin)
{
  for (std::int32_t i = 0; i < kTypesAsked; ++i) {
    auto const type = static_cast<DataType>(i);
    DataType output = DataType::kINT8;
    std::int32_t const status = plugin.build->getOutputDataTypes(&output, 1, &type, 1);
    checks.expect((status == 0) == is_taken(type), "output type of type " + std::to_string(i));
    checks.expect(status != 0 || output == type, "same type out as in, type " + std::to_string(i));
  }
  DataType const two_inputs[] = {DataType::kFLOAT, DataType::kFLOAT};
  DataType output{};
  checks.expect(plugin.build->getOutputDataTypes(&output, 1, two_inputs, 2) != 0, "two inputs refused");
}

void check_formats(Checks& checks, Plugin const& plugin)
{
  for (std::int32_t format = 0; format < kFormatsAsked; ++format) {
    for (std::int32_t first = 0; first < kTypesAsked; ++first) {
      nvinfer1::DynamicPluginTensorDesc tensors[2] = {};
      tensors[0].desc.type = static_cast<DataType>(first);
      tensors[0].desc.format = static_cast<TensorFormat>(format);
      bool const takes_input = format == 0 && is_taken(tensors[0].desc.type);
      std::string const asked = " type " + std::to_string(first) + " format " + std::to_string(format);
      checks.expect(plugin.build->supportsFormatCombination(0, tensors, 1, 1) == takes_input, "input" + asked);
      if (!takes_input) {
        continue;  // TensorRT asks about the output only after the input was accepted
      }
      for (std::int32_t second = 0; second < kTypesAsked; ++second) {
        for (std::int32_t output_format = 0; output_format < kFormatsAsked; ++output_format) {
          tensors[1].desc.type = static_cast<DataType>(second);
          tensors[1].desc.format = static_cast<TensorFormat>(output_format);
          bool const takes_output = second == first && output_format == 0;
          checks.expect(plugin.build->supportsFormatCombination(1, tensors, 1, 1) == takes_output,
                        "output type " + std::to_string(second) + " after" + asked);
        }
      }
    }
  }
  nvinfer1::DynamicPluginTensorDesc tensors[3] = {};
  checks.expect(!plugin.build->supportsFormatCombination(2, tensors, 2, 1), "three tensors refused");
  checks.expect(!plugin.build->supportsFormatCombination(-1, tensors, 1, 1), "position -1 refused");
}

void check_shapes(Checks& checks, Plugin const& plugin)
{
  // The plugin may only hand extents on, so anything with an address can stand in for them.
  static char stand_ins[nvinfer1::Dims::MAX_DIMS];
  alignas(std::max_align_t) static char builder[64];
  for (std::int32_t rank = 0; rank <= nvinfer1::Dims::MAX_DIMS; ++rank) {
    nvinfer1::DimsExprs input{};
    input.nbDims = rank;
    for (std::int32_t i = 0; i < rank; ++i) {
      input.d[i] = reinterpret_cast<nvinfer1::IDimensionExpr const*>(&stand_ins[i]);
    }
    nvinfer1::DimsExprs output{};
    output.nbDims = -7;
    std::int32_t const status = plugin.build->getOutputShapes(
        &input, 1, nullptr, 0, &output, 1, *reinterpret_cast<nvinfer1::IExprBuilder*>(builder));
    bool same = status == 0 && output.nbDims == rank;
    for (std::int32_t i = 0; i < rank; ++i) {
      same = same && output.d[i] == input.d[i];
    }
    checks.expect(same, "output shape of rank " + std::to_string(rank));
  }
}

// What enqueue gave, and the bits that were expected of it.
struct Run {
  std::int32_t status = 0;
  bool right = false;
  std::size_t allocations = 0;
};

std::uint16_t gelu_bits(DataType type, std::uint16_t bits)
{
  gelu::ModelledApproximations const model{};
  return type == DataType::kHALF ? fp16_from_float(gelu::gelu_16bit<0>(float_from_fp16(bits), model))
                                 : bf16_from_float(gelu::gelu_16bit<12>(float_from_bf16(bits), model));
}

Run run(Plugin const& attached, DataType type, std::vector<std::int64_t> const& shape)
{
  auto const count = static_cast<std::size_t>(
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, [](auto a, auto b) { return a * b; }));
  std::vector<unsigned char> input(count * element_bytes(type) + 1);
  std::vector<unsigned char> output(input.size());
  std::vector<unsigned char> expected(input.size());
  for (std::size_t i = 0; i < count; ++i) {
    if (type == DataType::kFLOAT) {
      float const x = -12.0F + 24.0F * static_cast<float>(i) / static_cast<float>(count);
      float const y = gelu::gelu_fp32(x);
      std::memcpy(&input[i * 4], &x, 4);
      std::memcpy(&expected[i * 4], &y, 4);
    } else {
      auto const x = static_cast<std::uint16_t>(i * 977U);
      std::uint16_t const y = gelu_bits(type, x);
      std::memcpy(&input[i * 2], &x, 2);
      std::memcpy(&expected[i * 2], &y, 2);
    }
  }
  nvinfer1::PluginTensorDesc const desc = tensor_desc(type, dims_from_extents(shape));
  if (attached.runtime->onShapeChange(&desc, 1, &desc, 1) != 0) {
    return {-100, false, 0};
  }
  void const* const inputs[] = {input.data()};
  void* const outputs[] = {output.data()};
  std::size_t const allocations_before = num_allocations;
  std::int32_t const status = attached.runtime->enqueue(&desc, &desc, inputs, outputs, nullptr, nullptr);
  return {status, output == expected, num_allocations - allocations_before};
}

// A thousand calls of each type: nothing is allocated and, where questions are counted, nothing is asked.
void check_cost_of_a_call(Checks& checks, Plugin const& attached)
{
  unsigned char input[256] = {};
  unsigned char output[256] = {};
  void const* const inputs[] = {input};
  void* const outputs[] = {output};
  for (DataType const type : kTaken) {
    nvinfer1::PluginTensorDesc const desc = tensor_desc(type, dims_from_extents({3, 7}));
    std::size_t const allocations_before = num_allocations;
    std::size_t const queries_before = num_queries;
    for (int i = 0; i < 1000; ++i) {
      (void)attached.runtime->enqueue(&desc, &desc, inputs, outputs, nullptr, nullptr);
    }
    bool const allocated = num_allocations != allocations_before;
    bool const asked = num_queries != queries_before;
    std::string const what = " type " + std::to_string(static_cast<int>(type));
    checks.expect(!allocated, "a thousand calls allocate nothing" + what);
    checks.expect(!asked, "a thousand calls ask the device nothing" + what);
  }
}

void check_execution(Checks& checks, Plugin const& configured, bool computes)
{
  std::size_t const queries_before = num_queries;
  Plugin const attached = plugin_from_pointer(configured.runtime->attachToContext(nullptr));
  checks.expect(!computes || num_queries > queries_before, "attaching asks the device, and that is counted");
  checks.expect(attached.owner != nullptr, "attach gives a plugin of its own");
  if (attached.owner == nullptr) {
    return;
  }
  for (DataType const type : kTaken) {
    for (std::vector<std::int64_t> const& shape : shapes()) {
      bool const empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
      std::string const what = " type " + std::to_string(static_cast<int>(type)) + " shape " + text(shape);
      Run const result = run(attached, type, shape);
      checks.expect(result.allocations == 0, "enqueue allocates nothing" + what);
      if (computes || empty) {
        checks.expect(result.status == 0 && result.right, "enqueue" + what);
      } else {
        checks.expect(result.status > 0, "without a device enqueue returns CUDA's error" + what);
      }
    }
  }

  check_cost_of_a_call(checks, attached);

  nvinfer1::PluginTensorDesc const desc = tensor_desc(DataType::kFLOAT, dims_from_extents({4}));
  void const* const null_input[] = {nullptr};
  void* const null_output[] = {nullptr};
  checks.expect(attached.runtime->enqueue(&desc, &desc, null_input, null_output, nullptr, nullptr) != 0,
                "a failed launch is an error");
  float element[4] = {};
  void const* const inputs[] = {element};
  void* const outputs[] = {element};
  checks.expect(configured.runtime->enqueue(&desc, &desc, inputs, outputs, nullptr, nullptr) != 0,
                "an unattached plugin does not run");
  nvinfer1::PluginTensorDesc const integers = tensor_desc(DataType::kINT32, dims_from_extents({4}));
  checks.expect(attached.runtime->onShapeChange(&integers, 1, &integers, 1) != 0, "int32 tensors are refused");
  checks.expect(attached.runtime->enqueue(&integers, &integers, inputs, outputs, nullptr, nullptr) != 0,
                "int32 tensors are not run");
  nvinfer1::PluginTensorDesc const unknown = tensor_desc(DataType::kFLOAT, dims_from_extents({-1}));
  checks.expect(attached.runtime->enqueue(&unknown, &unknown, inputs, outputs, nullptr, nullptr) != 0,
                "an unknown extent is not run");
  nvinfer1::PluginTensorDesc const other = tensor_desc(DataType::kFLOAT, dims_from_extents({5}));
  checks.expect(attached.runtime->onShapeChange(&desc, 1, &other, 1) != 0, "unequal shapes are refused");
  checks.expect(attached.runtime->setTactic(0) == 0, "the default tactic");
}

void check_serialisation(Checks& checks, PluginLibrary const& library, Plugin const& plugin, bool computes)
{
  nvinfer1::PluginFieldCollection const* const fields = plugin.runtime->getFieldsToSerialize();
  checks.expect(fields != nullptr, "fields to serialise");
  Plugin const restored =
      plugin_from_pointer(library.creators().front()->createPlugin("node", fields, TensorRTPhase::kRUNTIME));
  checks.expect(restored.owner != nullptr, "a plugin from its serialised fields");
  Plugin const attached = plugin_from_pointer(restored.runtime->attachToContext(nullptr));
  Run const result = run(attached, DataType::kHALF, {2, 3, 5});
  checks.expect(computes ? result.status == 0 && result.right : result.status > 0, "the restored plugin runs alike");
}

void check_configuration(Checks& checks, Plugin const& plugin)
{
  for (DataType const type : kTaken) {
    nvinfer1::DynamicPluginTensorDesc tensor{};
    tensor.desc = tensor_desc(type, dims_from_extents({-1, 128}));
    tensor.min = dims_from_extents({0, 128});
    tensor.opt = dims_from_extents({4, 128});
    tensor.max = dims_from_extents({8, 128});
    checks.expect(plugin.build->configurePlugin(&tensor, 1, &tensor, 1) == 0, "configure");
    nvinfer1::DynamicPluginTensorDesc other = tensor;
    other.desc.type = DataType::kINT32;
    checks.expect(plugin.build->configurePlugin(&tensor, 1, &other, 1) != 0, "another output type is refused");
    checks.expect(plugin.build->configurePlugin(&other, 1, &other, 1) != 0, "int32 is refused");
    nvinfer1::DynamicPluginTensorDesc const two[] = {tensor, tensor};
    checks.expect(plugin.build->configurePlugin(two, 2, &tensor, 1) != 0, "two inputs are refused");
  }
}

int check_library(char const* path, char const* name, char const* version, char const* space, bool computes)
{
  Checks checks;
  PluginLibrary const library(path);
  check_creator(checks, library, name, version, space);
  nvinfer1::PluginFieldCollection const no_fields{0, nullptr};
  Plugin const plugin =
      plugin_from_pointer(library.creators().front()->createPlugin("node", &no_fields, TensorRTPhase::kBUILD));
  checks.expect(plugin.owner != nullptr, "a plugin with its three capabilities");
  std::size_t const allocations_before = num_allocations;
  delete library.creators().front()->createPlugin("node", &no_fields, TensorRTPhase::kBUILD);
  bool const counted = num_allocations == allocations_before + 1;
  checks.expect(counted, "the library's allocations are counted");
#if !defined(__SANITIZE_ADDRESS__)
  std::size_t const before_aligned = num_allocations;
  void* volatile aligned = std::aligned_alloc(64, 64);  // volatile: or the compiler leaves out what nobody reads
  std::free(aligned);
  void* memory = nullptr;
  int const status = posix_memalign(&memory, 64, 64);
  std::free(memory);
  bool const counted_aligned = status == 0 && num_allocations == before_aligned + 2;
  checks.expect(counted_aligned, "aligned allocations are counted");
#endif
  if (plugin.owner == nullptr) {
    return checks.report();
  }
  check_identity(checks, plugin, name, version, space);
  check_types(checks, plugin);
  check_formats(checks, plugin);
  check_shapes(checks, plugin);
  check_configuration(checks, plugin);
  Plugin const copy = plugin_from_pointer(plugin.owner->clone());
  checks.expect(copy.owner != nullptr && copy.owner != plugin.owner, "a clone is another plugin");
  check_identity(checks, copy, name, version, space);
  check_serialisation(checks, library, plugin, computes);
  check_execution(checks, copy, computes);
  return checks.report();
}

}  // namespace
}  // namespace andrea::tests

int main(int num_arguments, char const* const* arguments)
{
  if (num_arguments != 6) {
    (void)std::fprintf(stderr, "usage: contract_checks LIBRARY NAME VERSION NAMESPACE cpu|no-gpu\n");
    return 2;
  }
  try {
    bool const computes = std::strcmp(arguments[5], "cpu") == 0;
    return andrea::tests::check_library(arguments[1], arguments[2], arguments[3], arguments[4], computes);
  } catch (std::exception const& error) {
    (void)std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
