#pragma once

#include <fstream>
#include <iterator>
#include <string>

#include "core/text/json.hpp"

namespace capstan::testing {

/// What DeepSpeed's autotuner was recorded to do: names of experiments, estimates of memory, lists of micro-batches.
inline const Json& recorded_autotuning() {
  static const Json recorded = [] {
    std::ifstream in(CAPSTAN_TEST_SOURCE_DIR "/tests/core/tuning/recorded_autotuning.json");
    return Json::parse(std::string{std::istreambuf_iterator<char>(in), {}});
  }();
  return recorded;
}

}  // namespace capstan::testing
