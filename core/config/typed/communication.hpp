#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/typed/section_values.hpp"

namespace capstan {

/// The top-level keys about what ranks exchange. Element types are "fp16", "bf16" or "fp32".
struct CommunicationConfig {
  std::optional<std::string> communication_data_type;  // absent: follows the precision
  bool prescale_gradients = false;
  double gradient_predivide_factor = 1.0;
  std::string gradient_allreduce_op = "mean";  // mean, sum
  bool sparse_gradients = false;
  bool operator==(const CommunicationConfig&) const = default;
};

struct CommsLoggerConfig {
  bool enabled = false;
  bool verbose = false;
  bool prof_all = true;
  bool debug = false;
  std::vector<std::string> prof_ops;
  bool operator==(const CommsLoggerConfig&) const = default;
};

/// The names under which collectives are recorded.
const std::vector<std::string>& collective_names();
/// That name for one that DeepSpeed or LibTorch has for the same; otherwise `name`.
std::string_view collective_name(std::string_view name);

/// `root`: the whole document.
CommunicationConfig read_communication(const SectionValues& root);
CommsLoggerConfig read_comms_logger(const SectionValues& section);

}  // namespace capstan
