#include "core/config/tools/config_dump.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "core/text/places.hpp"

namespace capstan {
namespace {

constexpr std::array<std::string_view, 1> kSecrets = {"comet.api_key"};

/// The values below a path: of objects their members, of others themselves.
void collect(const Json& value, const std::string& path, std::map<std::string, const Json*>& leaves) {
  if (!value.is_object() || value.size() == 0) {
    leaves.emplace(path, &value);
    return;
  }
  for (const auto& [name, member] : value.as_object()) collect(member, join_path(path, name), leaves);
}

/// The origin of the value itself, or else of the object that it stands in.
std::string origin_of(const Config& config, std::string path) {
  while (true) {
    if (const auto found = config.origins.find(path); found != config.origins.end()) return found->second;
    const auto dot = path.rfind('.');
    if (dot == std::string::npos) return "derived";
    path.resize(dot);
  }
}

}  // namespace

std::string config_dump(const Config& config) {
  constexpr std::size_t kWidth = 60;
  std::map<std::string, const Json*> leaves;
  collect(config.effective, "", leaves);
  std::string text = "Configuration:\n";
  for (const auto& [path, value] : leaves) {
    const bool secret = std::find(kSecrets.begin(), kSecrets.end(), path) != kSecrets.end();
    text += "  " + path + " " + std::string(path.size() < kWidth ? kWidth - path.size() : 1, '.') + " " +
            (secret ? "(not shown)" : value->dump()) + "  (" + origin_of(config, path) + ")\n";
  }
  return text;
}

}  // namespace capstan
