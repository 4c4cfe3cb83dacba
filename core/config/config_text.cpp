#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "core/config/config.hpp"
#include "core/errors.hpp"
#include "core/text/relaxed.hpp"

namespace capstan {
namespace {

std::string shortened(const std::string& text) {
  constexpr std::size_t kMost = 60;
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

std::string read_file(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw ConfigError(path + ": cannot be opened: " + std::strerror(errno) + ".");
  std::string text;
  std::array<char, 65536> piece;
  // What is beyond the limit need not be read to be refused.
  while (file && text.size() <= kLargestText) {
    file.read(piece.data(), piece.size());
    text.append(piece.data(), static_cast<std::size_t>(file.gcount()));
  }
  if (file.bad()) throw ConfigError(path + ": cannot be read: " + std::strerror(errno) + ".");
  if (text.size() > kLargestText) {
    throw ConfigError(path + ": larger than 16 MiB; a configuration has a few kilobytes.");
  }
  return text;
}

int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '-' || c == '+') return 62;
  if (c == '_' || c == '/') return 63;
  return -1;
}

std::optional<std::string> decode_base64(std::string_view text) {
  while (text.ends_with('=')) text.remove_suffix(1);
  if (text.empty() || text.size() % 4 == 1) return std::nullopt;
  std::string out;
  unsigned bits = 0;
  int count = 0;
  for (const char c : text) {
    const int digit = base64_digit(c);
    if (digit < 0) return std::nullopt;
    bits = (bits << 6) | static_cast<unsigned>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out += static_cast<char>((bits >> count) & 0xFF);
  }
  return out;
}

}  // namespace

ConfigText read_config_text(const std::string& path_or_base64) {
  namespace fs = std::filesystem;
  std::error_code error;
  const auto status = fs::status(path_or_base64, error);
  if (!error && fs::exists(status)) {
    if (fs::is_directory(status)) throw ConfigError(path_or_base64 + ": is a folder; a configuration is a file.");
    return {read_file(path_or_base64), path_or_base64, fs::path(path_or_base64).extension() == ".toml"};
  }
  if (auto decoded = decode_base64(path_or_base64)) {
    // Almost any word is base64; only text that opens an object was meant as such.
    const auto first = decoded->find_first_not_of(" \t\r\n\xEF\xBB\xBF");
    if (first != std::string::npos && (*decoded)[first] == '{') {
      if (decoded->size() > kLargestText)
        throw ConfigError("the base64 configuration: larger than 16 MiB; a configuration has a few kilobytes.");
      return {std::move(*decoded), "base64 configuration", false};
    }
  }
  throw ConfigError(
      "'" + shortened(path_or_base64) +
      "' is neither an existing file nor base64 of a configuration. Give the path of a JSON, TOML or YAML file, or "
      "the JSON text in URL-safe base64.");
}

}  // namespace capstan
