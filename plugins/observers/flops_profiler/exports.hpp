#pragma once

#include <string>
#include <vector>

#include "module_tree.hpp"
#include "report.hpp"

namespace capstan::profiler {

/// Every operator as a span, in the JSON that chrome://tracing and Perfetto open.
std::string chrome_trace(const std::vector<OpRecord>& records);

/// The tree, the operators by name, and the step, as JSON with exact numbers.
std::string profile_json(const Module& model, const std::vector<OpRecord>& records, const StepFacts& facts);

}  // namespace capstan::profiler
