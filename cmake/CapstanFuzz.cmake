# capstan_fuzzer: makes a libFuzzer program of a target that defines LLVMFuzzerTestOneInput, with clang only.
#
# What is fuzzed is libcapstan_config's sources, compiled once more with sanitizers and libFuzzer's counters into an
# archive, from which each program takes what it uses. -O1: the programs are built in a minute and run for many.

set(_capstan_fuzz_sanitizers -fsanitize=address,undefined -fno-sanitize-recover=undefined)

function(_capstan_add_fuzzed_archive)
  get_target_property(sources capstan_config SOURCES)
  list(TRANSFORM sources REPLACE "^([^/].*)$" "${PROJECT_SOURCE_DIR}/core/\\1")  # where the library is made
  add_library(capstan_fuzzed STATIC EXCLUDE_FROM_ALL ${sources})
  target_include_directories(capstan_fuzzed PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_definitions(capstan_fuzzed PRIVATE "CAPSTAN_VERSION=\"${PROJECT_VERSION}\"")
  target_compile_options(capstan_fuzzed PUBLIC -O1 -g1 ${_capstan_fuzz_sanitizers} PRIVATE -fsanitize=fuzzer-no-link)
  target_link_libraries(capstan_fuzzed PUBLIC capstan::sdk
    PRIVATE spdlog::spdlog_header_only Boost::headers ${CAPSTAN_NETTLE_LIBRARY} ${CAPSTAN_YAML} ${CMAKE_DL_LIBS})
endfunction()

function(capstan_fuzzer name)
  if(NOT TARGET capstan_fuzzed)
    _capstan_add_fuzzed_archive()
  endif()
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE ${_capstan_fuzz_sanitizers} -fsanitize=fuzzer)
  target_link_libraries(${name} PRIVATE capstan_fuzzed)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
endfunction()
