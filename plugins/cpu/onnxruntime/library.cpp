// What the library exports: the function that registers its operators with onnxruntime, and the name of its path.

#include "cpu/linear.h"
#include "cpu/onnxruntime/operator.h"

#define ANDREA_EXPORT extern "C" __attribute__((visibility("default")))

// What SessionOptions.register_custom_ops_library calls.
ANDREA_EXPORT andrea::ort::Status* RegisterCustomOps(andrea::ort::SessionOptions* options,
                                                     const andrea::ort::ApiBase* base) {
  using namespace andrea::ort;
  const Api* const api = base->GetApi(kApiVersion);
  if (api == nullptr) return nullptr;  // older than 1.17: there is no status to say it with, and the graph runs as it is
  // The domain is read as long as any session made with these options is open: it is never released.
  CustomOpDomain* domain = nullptr;
  if (Status* error = api->CreateCustomOpDomain("com.andrea", &domain)) return error;
  for (std::size_t i = 0; i < kNumLinearOperators; ++i)
    if (Status* error = api->CustomOpDomain_Add(domain, &linear_operator(i))) return error;
  if (Status* error = api->CustomOpDomain_Add(domain, &embed_operator())) return error;
  return api->AddCustomOpDomain(options, domain);
}

// The path that this processor takes, by its name.
ANDREA_EXPORT const char* andrea_cpu_path() { return andrea::cpu::chosen_path().name; }
