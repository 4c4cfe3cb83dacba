#include "core/config/typed/precision.hpp"

namespace capstan {

TorchAutocastConfig read_torch_autocast(const SectionValues& section) {
  TorchAutocastConfig to;
  section.read({{"enabled", &to.enabled},
                {"dtype", &to.dtype},
                {"lower_precision_safe_modules", &to.lower_precision_safe_modules}});
  return to;
}

}  // namespace capstan
