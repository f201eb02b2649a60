// TensorRT's plugin interface: NVIDIA's headers when the build was given them, the declarations in abi/ otherwise.
#pragma once

#if defined(ANDREA_USE_NVIDIA_HEADERS)
#include <NvInferRuntime.h>
#else
#include "tensorrt/abi/tensorrt_plugin_abi.h"
#endif
