#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "core/text/json.hpp"
#include "tests/support/process.hpp"

namespace capstan::test {

/// Into which scripts/setup installs the trackers' own packages.
inline const std::string kTrackerPython = CAPSTAN_TEST_SOURCE_DIR "/.venv-trackers/bin/python";

/// False on machines without a package network, which scripts/bundle serves. Tests skip there.
inline bool has_trackers() { return std::filesystem::exists(kTrackerPython); }

#define CAPSTAN_NEEDS_TRACKERS()        \
  if (!::capstan::test::has_trackers()) \
  GTEST_SKIP() << "no " << ::capstan::test::kTrackerPython << ": scripts/setup makes it"

/// What a script beside this file prints, as JSON.
inline Json run_reader(const std::string& script, const std::filesystem::path& read) {
  const ProcessResult result =
      run_process({kTrackerPython, CAPSTAN_TEST_SOURCE_DIR "/tests/plugins/monitors/" + script, read.string()}, {});
  if (result.exit_code != 0) {
    ADD_FAILURE() << script << ": " << result.err;
    return Json::object();
  }
  return Json::parse(result.out);
}

}  // namespace capstan::test
