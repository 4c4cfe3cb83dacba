#include "core/registry/plugin_pin.hpp"

#include <algorithm>
#include <fstream>

#include "core/errors.hpp"

namespace capstan {
namespace {

constexpr std::size_t kDigits = 64;

}  // namespace

std::filesystem::path pin_of(const std::filesystem::path& plugin) { return plugin.string() + ".sha256"; }

std::optional<std::string> read_pin(const std::filesystem::path& plugin) {
  const std::filesystem::path file = pin_of(plugin);
  std::error_code error;
  if (!std::filesystem::exists(file, error) && !error) return std::nullopt;
  std::ifstream in(file, std::ios::binary);
  std::string digits(kDigits, '\0');
  in.read(digits.data(), kDigits);
  if (!in || digits.find_first_not_of("0123456789abcdef") != std::string::npos) {
    throw PluginError(file.string() + ": does not begin with the 64 digits of a SHA-256, so " +
                      plugin.filename().string() +
                      " was not loaded. Install it again: capstan plugins install --force.");
  }
  return digits;
}

std::string pin_text(const std::filesystem::path& plugin, const std::string& sha256) {
  return sha256 + "  " + plugin.filename().string() + "\n";
}

}  // namespace capstan
