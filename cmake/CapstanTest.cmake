# capstan_add_test: one GoogleTest program, mirroring one source file or one behaviour.
#
#   capstan_add_test(lion_test
#     SOURCES lion_test.cpp
#     [LIBRARIES capstan capstan_config ...]   # default: capstan
#     [PLUGINS capstan_optimizer_lion ...]     # plugin targets that must be built first
#     [TIMEOUT seconds]                        # of one test, default 120
#     [THREADS n]                              # LibTorch's, default 2
#     [LABEL name]                             # for ctest -L
#     [ONE_PROCESS]                            # many quick tests, none skipped: ctest starts the program once for all of
#                                              # them, where each would spend half a second on loading LibTorch
#     [GPU]                                    # sees the GPUs of the machine; other tests are of the CPU
#     [TORCH_API])                             # includes torch/torch.h: shares the precompiled header
#
# Tests see CAPSTAN_TEST_BUILD_DIR (bin/, libexec/, lib/capstan/plugins/) and CAPSTAN_TEST_SOURCE_DIR.

include(GoogleTest)

# A test spends its time in what it tests, which is optimized as users get it. Of the test's own code the compiler would
# spend a quarter of its time on what -O2 does beyond -O1.
set(CAPSTAN_TEST_OPTIMIZATION "$<$<CONFIG:Release>:-O1>")

# gold reads LibTorch's tables of symbols in a third of the time that GNU ld takes, and there are 400 programs to link.
set(CAPSTAN_TEST_LINKER "")
find_program(CAPSTAN_GOLD ld.gold)
if(CAPSTAN_GOLD AND NOT CAPSTAN_SANITIZE)
  set(CAPSTAN_TEST_LINKER -fuse-ld=gold)
endif()

# Tests of what needs LibTorch share ATen and GoogleTest.
add_library(capstan_test_pch OBJECT ${PROJECT_SOURCE_DIR}/core/aten_pch.cpp)
target_compile_options(capstan_test_pch PRIVATE ${CAPSTAN_TEST_OPTIMIZATION})
target_link_libraries(capstan_test_pch PRIVATE capstan::torch_cpu GTest::gmock)
target_precompile_headers(capstan_test_pch PRIVATE ${PROJECT_SOURCE_DIR}/core/aten_pch.hpp <ATen/TensorOperators.h>
  <gmock/gmock.h> <gtest/gtest.h>)

# The others share GoogleTest.
add_library(capstan_gmock_pch OBJECT ${PROJECT_SOURCE_DIR}/tests/support/gmock_pch.cpp)
target_compile_options(capstan_gmock_pch PRIVATE ${CAPSTAN_TEST_OPTIMIZATION})
target_link_libraries(capstan_gmock_pch PRIVATE GTest::gmock)
target_precompile_headers(capstan_gmock_pch PRIVATE <gmock/gmock.h> <gtest/gtest.h>)

function(capstan_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH_API;GPU;ONE_PROCESS" "TIMEOUT;THREADS;LABEL" "SOURCES;LIBRARIES;PLUGINS")
  if(NOT arg_LIBRARIES)
    set(arg_LIBRARIES capstan)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(NOT arg_THREADS)
    set(arg_THREADS 2)
  endif()
  if(CAPSTAN_SANITIZE STREQUAL "thread")
    set(arg_THREADS 1)  # libgomp is not instrumented
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES} capstan_warnings GTest::gmock GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE
    CAPSTAN_TEST_BUILD_DIR="${CMAKE_BINARY_DIR}" CAPSTAN_TEST_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  capstan_program_rpath(${name})
  target_link_options(${name} PRIVATE ${CAPSTAN_TEST_LINKER})
  target_compile_options(${name} PRIVATE ${CAPSTAN_TEST_OPTIMIZATION})
  if(arg_TORCH_API)
    capstan_program_reuses(${name} capstan_torch_api_pch)
  elseif("capstan" IN_LIST arg_LIBRARIES)
    capstan_program_reuses(${name} capstan_test_pch)
  else()
    capstan_program_reuses(${name} capstan_gmock_pch)
  endif()
  if(arg_PLUGINS)
    add_dependencies(${name} ${arg_PLUGINS})
  endif()
  set(environment "OMP_NUM_THREADS=${arg_THREADS}" "OMP_WAIT_POLICY=passive")  # several tests share the processors
  if(NOT arg_GPU)
    list(APPEND environment "CUDA_VISIBLE_DEVICES=")
  endif()
  set(label "")
  if(arg_LABEL)
    set(label LABELS ${arg_LABEL})
  endif()
  if(arg_ONE_PROCESS)
    add_test(NAME ${name} COMMAND ${name})
    math(EXPR together "2 * ${arg_TIMEOUT}")
    set_tests_properties(${name} PROPERTIES TIMEOUT ${together} ENVIRONMENT "${environment}" ${label})
  else()
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST NO_PRETTY_VALUES PROPERTIES TIMEOUT ${arg_TIMEOUT}
      ENVIRONMENT "${environment}" ${label})
  endif()
endfunction()
