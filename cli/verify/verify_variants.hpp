#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "cli/verify/verify_compare.hpp"
#include "core/config/config.hpp"

namespace capstan::cli {

/// Settings over those of the configuration: dotted key path and value.
using Settings = std::vector<std::pair<std::string, Json>>;

/// One way to run the same training.
struct VerifyVariant {
  std::string name;       // "stage 3, 2 processes"
  std::string reference;  // the name of an earlier one that it is compared with; empty: this is the first
  int processes = 1;
  Settings settings;
  std::string plugin_path;  // a folder that is searched before all others; empty: none
  VerifyBound bound = VerifyBound::equal();
  std::string hint;        // what to look for where it differs
  std::string badge;       // what it shows, for a page: "ZeRO 3"
  std::string peer;        // the loop of another library that runs it: "plain", "deepspeed"; empty: Capstan's
  bool second = false;     // another engine trains a step in the process before
  std::string impossible;  // why this configuration has no such variant; empty: it has
  // A variant that goes on from a checkpoint: the run that saves it, after half of the steps.
  int saved_by = 0;  // its processes; 0: this one begins anew
  Settings saved_settings;
};

/// The table of variants. `config` is completed for one process. `processes`: of the variants with several. `scratch`:
/// a folder for what is offloaded to files. `peers`: loops of other libraries to compare with.
std::vector<VerifyVariant> verify_variants(const Config& config, int processes, const std::filesystem::path& scratch,
                                           const std::vector<std::string>& peers = {});

}  // namespace capstan::cli
