#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/config/config.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// What a run knows of itself beside its configuration.
struct RunFacts {
  std::string run;                         // names it; empty: the run has no name
  std::optional<std::int64_t> resumed_at;  // global samples of the checkpoint that was loaded
  std::string model;                       // its description
  std::int64_t parameters = 0;             // elements of all parameters
  std::string device;                      // "cpu"
};

/// The document that monitors get when they are opened; docs/reference/plugins/monitor.md lists its members. Keys that
/// hold credentials are blotted out everywhere.
Json run_info(const Config& config, const RunFacts& facts);

/// `document` with the value of every key that holds a credential replaced by "***".
Json without_credentials(const Json& document);

}  // namespace capstan
