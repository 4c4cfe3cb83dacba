# What needs a CUDA toolkit is built where one is found that fits the torch wheel's CUDA.
#
# Output:  CAPSTAN_HAS_CUDA        CUDA is an enabled language, CUDA::cudart and capstan::torch_cuda are there
#          CAPSTAN_CUDA_REASON     why not
#          capstan::torch_cuda     LibTorch for CUDA: torch_cuda, c10_cuda, the runtime

option(CAPSTAN_CUDA "Build what needs a CUDA toolkit, where there is one" ON)
set(CAPSTAN_HAS_CUDA FALSE)

function(_capstan_find_cuda reason)
  if(NOT CAPSTAN_CUDA)
    set(${reason} "CAPSTAN_CUDA is off" PARENT_SCOPE)
    return()
  endif()
  if(NOT EXISTS ${CAPSTAN_TORCH_LIB_DIR}/libtorch_cuda.so)
    set(${reason} "the torch wheel is one for CPUs only" PARENT_SCOPE)
    return()
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    set(${reason} "no CUDA toolkit was found; set CUDACXX to its nvcc" PARENT_SCOPE)
    return()
  endif()
  find_package(CUDAToolkit QUIET)
  execute_process(COMMAND readelf -d ${CAPSTAN_TORCH_LIB_DIR}/libc10_cuda.so OUTPUT_VARIABLE _needed ERROR_QUIET)
  string(REGEX MATCH "libcudart\\.so\\.([0-9]+)" _ "${_needed}")
  if(NOT CUDAToolkit_VERSION_MAJOR EQUAL CMAKE_MATCH_1)
    # Two CUDA runtimes in one process would be the result.
    set(${reason} "the torch wheel needs CUDA ${CMAKE_MATCH_1}, the toolkit found is ${CUDAToolkit_VERSION}" PARENT_SCOPE)
    return()
  endif()
  set(${reason} "" PARENT_SCOPE)
endfunction()

_capstan_find_cuda(CAPSTAN_CUDA_REASON)
if(CAPSTAN_CUDA_REASON)
  message(STATUS "CUDA: nothing is built for it: ${CAPSTAN_CUDA_REASON}")
  return()
endif()

# Every device that the torch wheel serves. Code for 80 runs on 86 and 89 too, code for 100 on 103; 110 compiles the PTX
# of 100 when it first runs, what is newer than 120 that of 120.
set(CAPSTAN_CUDA_ARCHITECTURES "75-real;80-real;90-real;100;120" CACHE STRING
  "Devices that CUDA code is built for, as in CMAKE_CUDA_ARCHITECTURES; fewer of them build faster")
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES ${CAPSTAN_CUDA_ARCHITECTURES})
endif()
set(CMAKE_CUDA_STANDARD 17)  # the newest that CMake 3.25 knows for nvcc
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
if(CAPSTAN_CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CAPSTAN_CCACHE})
endif()
add_library(capstan::c10_cuda SHARED IMPORTED)
set_target_properties(capstan::c10_cuda PROPERTIES IMPORTED_LOCATION ${CAPSTAN_TORCH_LIB_DIR}/libc10_cuda.so)
add_library(capstan::torch_cuda SHARED IMPORTED)
set_target_properties(capstan::torch_cuda PROPERTIES
  IMPORTED_LOCATION ${CAPSTAN_TORCH_LIB_DIR}/libtorch_cuda.so
  INTERFACE_LINK_LIBRARIES "capstan::torch_cpu;capstan::c10_cuda;CUDA::cudart")
set(CAPSTAN_HAS_CUDA TRUE)
message(STATUS "CUDA ${CUDAToolkit_VERSION} in ${CUDAToolkit_TARGET_DIR}")
