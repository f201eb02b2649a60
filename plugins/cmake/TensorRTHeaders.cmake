# andrea_use_tensorrt_headers(<target>): NVIDIA's headers when TENSORRT_ROOT names a folder with them, ours otherwise.
#
# A TENSORRT_ROOT without the headers stops the configuration: building against other headers than the ones asked
# for would be a silent fallback.
function(andrea_use_tensorrt_headers target)
  if(NOT TENSORRT_ROOT)
    return()
  endif()
  foreach(folder "${TENSORRT_ROOT}/include" "${TENSORRT_ROOT}"
          "${TENSORRT_ROOT}/include/${CMAKE_LIBRARY_ARCHITECTURE}")
    if(EXISTS "${folder}/NvInferRuntime.h")
      # NVIDIA's headers include CUDA's.
      target_include_directories(${target} SYSTEM PRIVATE "${folder}" ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
      target_compile_definitions(${target} PRIVATE ANDREA_USE_NVIDIA_HEADERS=1)
      return()
    endif()
  endforeach()
  message(FATAL_ERROR "TENSORRT_ROOT=${TENSORRT_ROOT}: no include/NvInferRuntime.h there")
endfunction()
