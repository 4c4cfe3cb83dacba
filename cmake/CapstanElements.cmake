# Optimizers that are rules of single elements (capstan/sdk/elements.hpp): one file for the CPU and for devices.
#
# capstan_add_elementwise(<name> SOURCE <file.cpp> [MANIFEST <plugin.toml>] [OUTPUT_NAME capstan_<x>] [DEVICES <type>...]
#                         [LIBRARIES <library>...])
#
#   the plugin <name> for the CPU: Highway's vectors, the instruction set chosen when the plugin runs
#   <name>_cuda                    for device "cuda", where CMAKE_CUDA_COMPILER is set: enable_language(CUDA) before
#   <name>_<type>_on_cpu           for each of DEVICES (default: cuda): the device's kernel run by the CPU, in
#                                  lib/capstan/emulated of the build folder, for `capstan plugins check --device emulated`
#
# The manifest is the CPU's; those of devices are made of it. Needs Highway (libhwy-dev) to build, and nothing to run.

set(CAPSTAN_ELEMENTS_DIR ${CMAKE_CURRENT_LIST_DIR}/elements)
if(NOT EXISTS ${CAPSTAN_ELEMENTS_DIR})
  set(CAPSTAN_ELEMENTS_DIR ${PROJECT_SOURCE_DIR}/sdk/elements)  # in Capstan's own tree
endif()

# CMake 3.25 knows no newer dialect than 17 for nvcc. In the cache, since a project may enable CUDA later.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20" CACHE INTERNAL "")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20" CACHE INTERNAL "")
endif()

# The library `capstan_elements`, which plugins contain: the loop over slots, the conversion of 16-bit values.
function(capstan_elements_library)
  if(TARGET capstan_elements)
    return()
  endif()
  find_package(hwy 1.0 REQUIRED)
  _capstan_find_libtorch()
  add_library(capstan_elements STATIC ${CAPSTAN_ELEMENTS_DIR}/elementwise.cpp ${CAPSTAN_ELEMENTS_DIR}/convert.cpp)
  _capstan_set_highway_file(${CAPSTAN_ELEMENTS_DIR}/convert.cpp)
  target_link_libraries(capstan_elements PUBLIC capstan::sdk capstan::torch_headers hwy::hwy)
  target_compile_features(capstan_elements PUBLIC cxx_std_20)
  target_compile_definitions(capstan_elements
    PRIVATE TORCH_TARGET_VERSION=0x020b000000000000
    PUBLIC
    # A processor with SSSE3 and without SSE4 is older than LibTorch's own minimum; vectors without a size cannot be members.
    "HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SVE|HWY_SVE2|HWY_SVE_256|HWY_SVE2_128|HWY_RVV)")
  # One rounding where a rule says mul_add and two where it does not, in vector body and tail alike.
  target_compile_options(capstan_elements PUBLIC -ffp-contract=off PRIVATE -fdata-sections -ffunction-sections)
  set_target_properties(capstan_elements PROPERTIES
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON POSITION_INDEPENDENT_CODE ON)
endfunction()

# Highway includes the file once more for each instruction set.
function(_capstan_set_highway_file file)
  set_property(SOURCE ${file} APPEND PROPERTY COMPILE_DEFINITIONS "HWY_TARGET_INCLUDE=\"${file}\"")
endfunction()

# capstan_device_manifest(<output> <plugin.toml> <device>): a manifest of the same components for another device, in a plugin of
# another name.
function(capstan_device_manifest output file device)
  get_filename_component(file ${file} ABSOLUTE)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${file} text)
  string(FIND "${text}" "[[components]]" at)
  string(SUBSTRING "${text}" 0 ${at} head)
  string(SUBSTRING "${text}" ${at} -1 text)
  string(REGEX REPLACE "\nname = \"([^\"]+)\"" "\nname = \"\\1-${device}\"" head "${head}")
  string(REGEX REPLACE "\ndevice = \"[a-z]+\"" "" text "${text}")
  string(REPLACE "[[components]]\n" "[[components]]\ndevice = \"${device}\"\n" text "${text}")
  string(REPLACE "\"cpu\"]" "\"cuda\"]" text "${text}")
  file(CONFIGURE OUTPUT ${output} CONTENT "${head}${text}" @ONLY)
endfunction()

function(capstan_add_elementwise name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "SOURCE;MANIFEST;OUTPUT_NAME" "DEVICES;LIBRARIES")
  if(NOT arg_SOURCE)
    message(FATAL_ERROR "capstan_add_elementwise(${name}): SOURCE, the file with the rules, is missing.")
  endif()
  if(NOT arg_MANIFEST)
    set(arg_MANIFEST plugin.toml)
  endif()
  if(NOT arg_OUTPUT_NAME)
    set(arg_OUTPUT_NAME capstan_optimizer_${name})
  endif()
  if(NOT arg_DEVICES)
    set(arg_DEVICES cuda)
  endif()
  capstan_elements_library()
  get_filename_component(source ${arg_SOURCE} ABSOLUTE)
  capstan_add_plugin(${name} KIND optimizer TIER stable SOURCES ${source} MANIFEST ${arg_MANIFEST} OUTPUT_NAME ${arg_OUTPUT_NAME}
    LIBRARIES capstan_elements ${arg_LIBRARIES})
  _capstan_set_highway_file(${source})

  set(kernel ${CMAKE_CURRENT_BINARY_DIR}/${name}_on_device.cu)
  set(updates ${CMAKE_CURRENT_BINARY_DIR}/${name}_for_device.cpp)
  file(CONFIGURE OUTPUT ${kernel} CONTENT "#define CAPSTAN_RULES_ON_DEVICE\n#include \"${source}\"\n" @ONLY)
  file(CONFIGURE OUTPUT ${updates} CONTENT "#define CAPSTAN_RULES_FOR_DEVICE\n#include \"${source}\"\n" @ONLY)
  if(CMAKE_CUDA_COMPILER)
    set(manifest ${CMAKE_CURRENT_BINARY_DIR}/${name}_cuda.toml)
    capstan_device_manifest(${manifest} ${arg_MANIFEST} cuda)
    if(CAPSTAN_INSTALL_PLUGINS)
      set(CAPSTAN_INSTALL_PLUGINS capstan_gpu_plugins)
    endif()
    capstan_add_plugin(${name}_cuda KIND optimizer TIER stable SOURCES ${kernel} ${updates} MANIFEST ${manifest}
      OUTPUT_NAME ${arg_OUTPUT_NAME}_cuda LIBRARIES ${arg_LIBRARIES})
    set_target_properties(capstan_optimizer_${name}_cuda PROPERTIES CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON)
    # nvcc fuses no multiply-adds by itself, so that a rule rounds as on the CPU.
    target_compile_options(capstan_optimizer_${name}_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false>)
  endif()
  set(CAPSTAN_INSTALL_PLUGINS "")
  foreach(device IN LISTS arg_DEVICES)
    set(manifest ${CMAKE_CURRENT_BINARY_DIR}/${name}_${device}_on_cpu.toml)
    capstan_device_manifest(${manifest} ${arg_MANIFEST} ${device})
    set(plugin ${name}_${device}_on_cpu)
    capstan_add_plugin(${plugin} KIND optimizer TIER stable SOURCES ${kernel} ${updates} MANIFEST ${manifest}
      OUTPUT_NAME ${arg_OUTPUT_NAME}_${device}_on_cpu LIBRARIES ${arg_LIBRARIES})
    set(plugin capstan_optimizer_${plugin})
    capstan_run_kernels_on_cpu(${plugin})
    if(COMMAND capstan_put_with_emulated_device)
      capstan_put_with_emulated_device(${plugin})
    else()
      set_target_properties(${plugin} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/capstan/emulated)
    endif()
  endforeach()
endfunction()
