#include "core/config/resolve/offload_sections.hpp"

#include <string>

namespace capstan {

bool offloads(const Effective& values, const char* section) {
  const std::string device = values.text(std::string(section) + ".device");
  return device == "cpu" || device == "nvme";
}

}  // namespace capstan
