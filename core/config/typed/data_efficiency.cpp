#include "core/config/typed/data_efficiency.hpp"

namespace capstan {

DataEfficiencyConfig read_data_efficiency(const SectionValues& section) {
  DataEfficiencyConfig to;
  section.read({{"enabled", &to.enabled}, {"seed", &to.seed}});
  section.section("data_sampling")
      .read({{"enabled", &to.data_sampling.enabled}, {"num_epochs", &to.data_sampling.num_epochs}});
  return to;
}

}  // namespace capstan
