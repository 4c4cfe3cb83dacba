#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/limits.hpp"
#include "core/engine/planned_pass.hpp"
#include "core/text/json.hpp"
#include "core/zero/memory_plan.hpp"

namespace capstan::cli {

/// One line of the table of choices.
struct PlannedChoice {
  ZeroChoice choice;
  MemoryPlan memory;
  std::string lacks;  // what this build lacks for it; empty: nothing
};

/// A need and what there is of it.
struct PlannedLimit {
  std::int64_t needed = 0;
  Limit limit;
  bool fits() const { return needed <= static_cast<std::int64_t>(limit.bytes); }
};

/// What a layout leaves of attention's scores, of a micro-batch's forward.
struct SparsePart {
  std::string layout, where;  // its type, and the key that chose it
  std::int64_t calls = 0;
  double scores = 0, dense_scores = 0;
};

/// All that `capstan plan` says.
struct Plan {
  std::string model, optimizer, precision, device = "cpu";
  std::int64_t micro_batch = 1;  // samples
  bool assumes_batch = false;    // the configuration does not say how many
  PlannedRun run;
  PlannedPass plain;                       // a micro-batch without recomputation
  std::optional<PlannedPass> recomputing;  // as configured; none: nothing is recomputed
  std::optional<SparsePart> attention;     // none: it is dense
  std::int64_t program = 0;                // bytes of a process that holds no model
  std::int64_t checkpoint = 0;
  std::int64_t snapshots = 0;  // shared memory of a process that is one of an elastic launch; 0: it is none
  PlannedChoice configured;
  std::vector<PlannedChoice> choices;
  std::vector<std::vector<PlannedTraffic>> traffic;  // one list for each stage, 0 to 3
  std::vector<PlannedLimit> limits;
  std::vector<Limit> gpus;

  bool on_cpu() const { return device == "cpu"; }
  /// Host memory of a process as it is configured.
  std::int64_t process_bytes() const;
};

std::string plan_text(const Plan& plan);
Json plan_json(const Plan& plan);

}  // namespace capstan::cli
