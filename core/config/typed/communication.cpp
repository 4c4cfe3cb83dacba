#include "core/config/typed/communication.hpp"

#include <utility>

namespace capstan {

const std::vector<std::string>& collective_names() {
  static const std::vector<std::string> kNames = {"all_reduce",        "all_gather", "reduce_scatter",
                                                  "all_to_all_single", "broadcast",  "all_gather_object"};
  return kNames;
}

std::string_view collective_name(std::string_view name) {
  static constexpr std::pair<std::string_view, std::string_view> kSame[] = {
      {"all_reduce_coalesced", "all_reduce"},      {"inference_all_reduce", "all_reduce"},
      {"all_gather_into_tensor", "all_gather"},    {"all_gather_coalesced", "all_gather"},
      {"reduce_scatter_tensor", "reduce_scatter"}, {"all_to_all", "all_to_all_single"},
  };
  for (const auto& [other, own] : kSame) {
    if (name == other) return own;
  }
  return name;
}

CommunicationConfig read_communication(const SectionValues& root) {
  CommunicationConfig to;
  root.read({{"communication_data_type", &to.communication_data_type},
             {"prescale_gradients", &to.prescale_gradients},
             {"gradient_predivide_factor", &to.gradient_predivide_factor},
             {"gradient_allreduce_op", &to.gradient_allreduce_op},
             {"sparse_gradients", &to.sparse_gradients}});
  return to;
}

CommsLoggerConfig read_comms_logger(const SectionValues& section) {
  CommsLoggerConfig to;
  section.read({{"enabled", &to.enabled},
                {"verbose", &to.verbose},
                {"prof_all", &to.prof_all},
                {"debug", &to.debug},
                {"prof_ops", &to.prof_ops}});
  return to;
}

}  // namespace capstan
