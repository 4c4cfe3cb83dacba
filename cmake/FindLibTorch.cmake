# LibTorch as it comes in the `torch` wheel, without LibTorch's own CMake package, which drags CUDA into every consumer.
#
# Input:   CAPSTAN_TORCH_DIR, the wheel's `torch` folder. Default: the project's .venv, the
#          one beside the package for Python, then that of the python3 on the PATH.
# Output:  capstan::torch_cpu   everything for the CPU (torch_cpu, c10, headers)
#          capstan::torch_headers  the headers alone, for the stable tier
#          CAPSTAN_TORCH_VERSION, CAPSTAN_TORCH_BUILD_ID (of libc10.so), CAPSTAN_TORCH_LIB_DIR

set(CAPSTAN_TORCH_REQUIRED_VERSION 2.11.0)

if(NOT CAPSTAN_TORCH_DIR)
  # The second: beside the package for Python, in which this file may be installed.
  file(GLOB _candidates ${CMAKE_CURRENT_LIST_DIR}/../.venv/lib/python3*/site-packages/torch
    ${CMAKE_CURRENT_LIST_DIR}/../../../../torch)
  if(NOT _candidates)
    execute_process(
      COMMAND python3 -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE _candidates OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  if(_candidates)
    list(GET _candidates 0 _first)
    get_filename_component(_first "${_first}" REALPATH)
    set(CAPSTAN_TORCH_DIR "${_first}" CACHE PATH "The torch folder of the torch wheel")
  endif()
endif()
if(NOT EXISTS "${CAPSTAN_TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR
    "LibTorch: no torch wheel in '${CAPSTAN_TORCH_DIR}'. Run scripts/setup, which installs torch "
    "${CAPSTAN_TORCH_REQUIRED_VERSION} into .venv, or pass -DCAPSTAN_TORCH_DIR=<site-packages>/torch.")
endif()

set(CAPSTAN_TORCH_LIB_DIR ${CAPSTAN_TORCH_DIR}/lib)
file(STRINGS ${CAPSTAN_TORCH_DIR}/include/torch/headeronly/version.h _lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE "[^;]* ([0-9]+)" "\\1" _lines "${_lines}")
string(REPLACE ";" "." CAPSTAN_TORCH_VERSION "${_lines}")
if(NOT CAPSTAN_TORCH_VERSION VERSION_EQUAL CAPSTAN_TORCH_REQUIRED_VERSION)
  message(FATAL_ERROR
    "LibTorch: '${CAPSTAN_TORCH_DIR}' holds ${CAPSTAN_TORCH_VERSION}, this release is built with "
    "${CAPSTAN_TORCH_REQUIRED_VERSION}. Run scripts/setup, or point CAPSTAN_TORCH_DIR at that version.")
endif()
execute_process(COMMAND readelf -n ${CAPSTAN_TORCH_LIB_DIR}/libc10.so OUTPUT_VARIABLE _notes ERROR_QUIET)
string(REGEX MATCH "Build ID: ([0-9a-f]+)" _ "${_notes}")
set(CAPSTAN_TORCH_BUILD_ID "${CMAKE_MATCH_1}")
message(STATUS "LibTorch ${CAPSTAN_TORCH_VERSION} (build ${CAPSTAN_TORCH_BUILD_ID}) in ${CAPSTAN_TORCH_DIR}")

if(NOT TARGET capstan::torch_cpu)
  add_library(capstan::torch_headers INTERFACE IMPORTED)
  set_target_properties(capstan::torch_headers PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES
      "${CAPSTAN_TORCH_DIR}/include;${CAPSTAN_TORCH_DIR}/include/torch/csrc/api/include")
  add_library(capstan::c10 SHARED IMPORTED)
  set_target_properties(capstan::c10 PROPERTIES IMPORTED_LOCATION ${CAPSTAN_TORCH_LIB_DIR}/libc10.so)
  add_library(capstan::torch_cpu SHARED IMPORTED)
  set_target_properties(capstan::torch_cpu PROPERTIES
    IMPORTED_LOCATION ${CAPSTAN_TORCH_LIB_DIR}/libtorch_cpu.so
    INTERFACE_LINK_LIBRARIES "capstan::torch_headers;capstan::c10")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS CAPSTAN_TORCH_LIB_DIR CAPSTAN_TORCH_BUILD_ID VERSION_VAR CAPSTAN_TORCH_VERSION)
