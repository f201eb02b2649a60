// Prints the layout facts of the plugin ABI that vtables do not show: sizes, offsets, enumerators. One line each.
#include <cstddef>
#include <cstdio>

#include "tensorrt/tensorrt.h"

#define SIZE(type) std::printf("sizeof " #type " %zu align %zu\n", sizeof(nvinfer1::type), alignof(nvinfer1::type))
#define OFFSET(type, member) std::printf("offset " #type "." #member " %zu\n", offsetof(nvinfer1::type, member))
#define VALUE(name) std::printf("value " #name " %d\n", static_cast<int>(nvinfer1::name))

int main()
{
  SIZE(InterfaceInfo);
  OFFSET(InterfaceInfo, kind);
  OFFSET(InterfaceInfo, major);
  OFFSET(InterfaceInfo, minor);
  SIZE(Dims);
  OFFSET(Dims, nbDims);
  OFFSET(Dims, d);
  VALUE(Dims::MAX_DIMS);
  SIZE(PluginTensorDesc);
  OFFSET(PluginTensorDesc, dims);
  OFFSET(PluginTensorDesc, type);
  OFFSET(PluginTensorDesc, format);
  OFFSET(PluginTensorDesc, scale);
  SIZE(DynamicPluginTensorDesc);
  OFFSET(DynamicPluginTensorDesc, desc);
  OFFSET(DynamicPluginTensorDesc, min);
  OFFSET(DynamicPluginTensorDesc, max);
  OFFSET(DynamicPluginTensorDesc, opt);
  SIZE(DimsExprs);
  OFFSET(DimsExprs, nbDims);
  OFFSET(DimsExprs, d);
  SIZE(PluginField);
  OFFSET(PluginField, name);
  OFFSET(PluginField, data);
  OFFSET(PluginField, type);
  OFFSET(PluginField, length);
  SIZE(PluginFieldCollection);
  OFFSET(PluginFieldCollection, nbFields);
  OFFSET(PluginFieldCollection, fields);
  VALUE(APILanguage::kCPP);
  VALUE(APILanguage::kPYTHON);
  VALUE(TensorRTPhase::kBUILD);
  VALUE(TensorRTPhase::kRUNTIME);
  VALUE(PluginCapabilityType::kCORE);
  VALUE(PluginCapabilityType::kBUILD);
  VALUE(PluginCapabilityType::kRUNTIME);
  VALUE(DataType::kFLOAT);
  VALUE(DataType::kHALF);
  VALUE(DataType::kINT8);
  VALUE(DataType::kINT32);
  VALUE(DataType::kBOOL);
  VALUE(DataType::kBF16);
  VALUE(DataType::kINT64);
  VALUE(TensorFormat::kLINEAR);
  VALUE(PluginFieldType::kFLOAT32);
  VALUE(PluginFieldType::kINT32);
  VALUE(PluginFieldType::kCHAR);
  VALUE(PluginFieldType::kUNKNOWN);
  return 0;
}
