// The TensorRT plugin com.andrea::AndreaGelu: one row for the elementwise base.
#include "andrea_op_rows/gelu.h"
#include "common/creators.h"
#include "common/elementwise_plugin.h"
#include "gelu/kernel.h"

namespace andrea {

nvinfer1::IPluginCreatorInterface* gelu_creator() noexcept
{
  static constexpr ElementwiseOp kOp{
      op_row::kName,          op_row::kVersion,
      op_row::kNamespace,     op_row::kStorageTypes,
      sizeof op_row::kStorageTypes / sizeof op_row::kStorageTypes[0],
      &gelu::launch_gelu,
  };
  static ElementwiseCreator creator(kOp);
  return &creator;
}

}  // namespace andrea
