// Every operator's creator, one declaration an operator. Each is defined in its operator's plugin.cpp.
#pragma once

#include "common/tensorrt.h"

namespace andrea {

nvinfer1::IPluginCreatorInterface* gelu_creator() noexcept;

}  // namespace andrea
