# Test programs. All of them are compiled by g++ alone; none is part of what ships.
set(ANDREA_SANITIZE "" CACHE STRING "The sanitizers of the test programs: address,undefined or thread; empty: none")

add_library(andrea_test_options INTERFACE)
target_link_libraries(andrea_test_options INTERFACE andrea_options)
target_compile_definitions(andrea_test_options INTERFACE ANDREA_CPU_GRID=1)
if(ANDREA_SANITIZE)
  target_compile_options(andrea_test_options INTERFACE
    -fsanitize=${ANDREA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g -O1)
  target_link_options(andrea_test_options INTERFACE -fsanitize=${ANDREA_SANITIZE})
endif()

# A kernel.cu is C++ here, through a file of another name, because a source's language is one for the whole folder.
set(kernels_for_cpu "")
foreach(operator IN LISTS operators)
  set(kernel_for_cpu "${PROJECT_BINARY_DIR}/generated/${operator}_kernel_cpu.cpp")
  file(GENERATE OUTPUT "${kernel_for_cpu}" CONTENT "#include \"${operator}/kernel.cu\"\n")
  list(APPEND kernels_for_cpu "${kernel_for_cpu}")
endforeach()

# The plugin, its kernels running on the CPU grid.
add_library(andrea_plugins_cpu SHARED EXCLUDE_FROM_ALL
  tensorrt/creators.cpp tensorrt/elementwise_plugin.cpp ${kernels_for_cpu})
target_link_libraries(andrea_plugins_cpu PRIVATE andrea_test_options)
target_include_directories(andrea_plugins_cpu PRIVATE "${PROJECT_BINARY_DIR}/generated")
target_compile_options(andrea_plugins_cpu PRIVATE -Wno-unknown-pragmas)

add_executable(andrea_kernel_checks EXCLUDE_FROM_ALL tests/kernel_checks.cpp ${kernels_for_cpu})
target_link_libraries(andrea_kernel_checks PRIVATE andrea_test_options)
target_compile_options(andrea_kernel_checks PRIVATE -Wno-unknown-pragmas)

add_library(andrea_harness_objects OBJECT EXCLUDE_FROM_ALL tests/plugin_harness.cpp)
target_link_libraries(andrea_harness_objects PRIVATE andrea_test_options)
andrea_use_tensorrt_headers(andrea_harness_objects)

add_executable(andrea_contract_checks EXCLUDE_FROM_ALL
  tests/contract_checks.cpp $<TARGET_OBJECTS:andrea_harness_objects>)
# The plugin library is to find this program's operator new.
set_target_properties(andrea_contract_checks PROPERTIES ENABLE_EXPORTS ON)
target_link_libraries(andrea_contract_checks PRIVATE andrea_test_options ${CMAKE_DL_LIBS})
andrea_use_tensorrt_headers(andrea_contract_checks)

add_library(andrea_harness SHARED EXCLUDE_FROM_ALL tests/harness_c.cpp $<TARGET_OBJECTS:andrea_harness_objects>)
target_link_libraries(andrea_harness PRIVATE andrea_test_options ${CMAKE_DL_LIBS})
andrea_use_tensorrt_headers(andrea_harness)

find_package(Threads REQUIRED)
add_executable(andrea_cpu_checks EXCLUDE_FROM_ALL tests/cpu/cpu_checks.cpp cpu/dispatch.cpp cpu/paths/portable.cpp)
target_link_libraries(andrea_cpu_checks PRIVATE andrea_test_options Threads::Threads)
andrea_add_cpu_paths(andrea_cpu_checks)

add_custom_target(andrea_tests DEPENDS
  andrea_plugins_cpu andrea_kernel_checks andrea_contract_checks andrea_harness andrea_cpu_checks)
