#include "core/config/typed/communication.hpp"

namespace capstan {

CommunicationConfig read_communication(const SectionValues& root) {
  CommunicationConfig to;
  root.read({{"communication_data_type", &to.communication_data_type},
             {"prescale_gradients", &to.prescale_gradients},
             {"gradient_predivide_factor", &to.gradient_predivide_factor},
             {"gradient_allreduce_op", &to.gradient_allreduce_op},
             {"sparse_gradients", &to.sparse_gradients},
             {"seq_parallel_communication_data_type", &to.seq_parallel_communication_data_type}});
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
