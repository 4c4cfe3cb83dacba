#include <cstddef>
#include <cstdint>

#include "tests/core/config/config_fuzzers.hpp"

#ifndef CAPSTAN_FUZZ_TARGET
#error "CAPSTAN_FUZZ_TARGET names the function to fuzz: fuzz_json, fuzz_toml or fuzz_validator"
#endif

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  capstan::testing::CAPSTAN_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}
