#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>

/// RESULT.parts: the folder in which 'capstan data' keeps pieces of tokens until the result has all of them. What
/// searches folders for data leaves it out.
namespace capstan::sdk {

/// The hexadecimal digits before "-000012.idx" in the name of a piece's file.
inline constexpr std::size_t kPiecePrefix = 16;

/// Whether a file is named like "0123456789abcdef-000012.idx", with ".part" behind it while it is written.
inline bool is_piece_file(std::string_view name) {
  constexpr std::string_view kSuffixes[] = {".idx", ".bin", ".sizes", ".json"};
  const std::size_t number = kPiecePrefix + 1, suffix = name.find('.');
  if (suffix == std::string_view::npos || suffix <= number || name[kPiecePrefix] != '-') return false;
  const auto consists_of = [&](std::size_t begin, std::size_t end, const char* characters) {
    return name.substr(begin, end - begin).find_first_not_of(characters) == std::string_view::npos;
  };
  if (!consists_of(0, kPiecePrefix, "0123456789abcdef") || !consists_of(number, suffix, "0123456789")) return false;
  const std::string_view rest = name.substr(suffix);
  return std::any_of(std::begin(kSuffixes), std::end(kSuffixes), [&](std::string_view one) {
    return rest == one || (rest.starts_with(one) && rest.substr(one.size()).starts_with(".part"));
  });
}

/// Whether a folder's name ends in ".parts" and all of its files but hidden ones are of pieces. False for a folder that
/// cannot be read.
inline bool is_piece_folder(const std::filesystem::path& folder) {
  if (folder.extension() != ".parts") return false;
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (!name.starts_with('.') && !is_piece_file(name)) return false;
  }
  return !error;
}

}  // namespace capstan::sdk
