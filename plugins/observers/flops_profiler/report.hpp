#pragma once

#include <cstdint>
#include <string>

#include "module_tree.hpp"

namespace capstan::profiler {

/// What one profiled step was.
struct StepFacts {
  std::int64_t step = 0;
  std::uint32_t world_size = 1;
  double samples = 0;                                     // samples of the step on all ranks
  double micro_batch = 0;                                 // samples of one micro-batch on this rank
  double forward_ms = 0, backward_ms = 0, update_ms = 0;  // times of the step, summed over its micro-batches
  double recompute_factor = 0;
  Recorder::Recomputed recomputed;
  double peak_flops = 0;    // a second; 0: not known
  std::string peak_source;  // "given", "measured, by a matrix product"
};

struct ReportOptions {
  int module_depth = -1, top_modules = 1;
  bool detailed = true;
};

/// "4.11 GMACs": two decimals, a unit of T, G, M, K, none, m, u. Parameters take B for 1e9.
std::string number_text(double value, const std::string& suffix);
std::string params_text(double value);

/// The whole report, as printed.
std::string report_text(const Module& model, const StepFacts& facts, const ReportOptions& options);

}  // namespace capstan::profiler
