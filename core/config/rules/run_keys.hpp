#pragma once

#include <string>
#include <vector>

#include "core/config/typed/config.hpp"

namespace capstan {

/// A key of capstan.run that has no effect without another one.
struct IdleRunKey {
  const char* key;
  std::string why;  // "has no effect without ..."
};

/// Such keys, each once. `evaluates`: there is data for evaluations. A file that is only checked may be meant for a
/// command line or a program that gives the other key; a run refuses them.
std::vector<IdleRunKey> idle_run_keys(const RunConfig& run, bool evaluates);

}  // namespace capstan
