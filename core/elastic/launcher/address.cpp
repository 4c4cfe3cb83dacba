#include "core/elastic/launcher/address.hpp"

#include <charconv>
#include <sstream>

namespace capstan {

std::optional<LauncherAddress> LauncherAddress::of(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  LauncherAddress address{text.substr(0, colon), 0};
  const bool bracketed = address.host.starts_with('[') && address.host.ends_with(']');
  if (bracketed) address.host = address.host.substr(1, address.host.size() - 2);
  if (!bracketed && address.host.find(':') != std::string::npos) return std::nullopt;
  const char *begin = text.data() + colon + 1, *end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(begin, end, address.port);
  const bool good = failure == std::errc() && stop == end && address.port >= 1 && address.port <= 65535;
  return good && !address.host.empty() ? std::optional(address) : std::nullopt;
}

std::vector<LauncherAddress> LauncherAddress::list_of(const std::string& text) {
  std::vector<LauncherAddress> list;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    const auto one = of(word);
    if (!one) return {};
    list.push_back(*one);
  }
  return list;
}

std::string LauncherAddress::text() const {
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
}

}  // namespace capstan
