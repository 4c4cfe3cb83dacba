#include "core/text/places.hpp"

#include <algorithm>

namespace capstan {

TextPlaces::TextPlaces(std::string_view text) : line_starts_{0} {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') line_starts_.push_back(i + 1);
  }
}

int TextPlaces::line(std::size_t offset) const {
  return static_cast<int>(std::upper_bound(line_starts_.begin(), line_starts_.end(), offset) - line_starts_.begin());
}

int TextPlaces::column(std::size_t offset) const {
  return static_cast<int>(offset - line_starts_[static_cast<std::size_t>(line(offset)) - 1] + 1);
}

std::string join_path(const std::string& parent, std::string_view key) {
  return parent.empty() ? std::string(key) : parent + "." + std::string(key);
}

std::string element_path(const std::string& parent, std::size_t index) {
  return parent + "[" + std::to_string(index) + "]";
}

void PathPlaces::add(const Json& document) { add("", document); }

void PathPlaces::add(const std::string& path, const Json& value) {
  if (value.offset()) offsets_.try_emplace(path, *value.offset());
  if (value.is_object()) {
    for (const auto& [key, member] : value.as_object()) add(join_path(path, key), member);
  } else if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i) add(element_path(path, i), value.as_array()[i]);
  }
}

void PathPlaces::locate(Problems& problems, const TextPlaces& places) const {
  for (auto& problem : problems.all()) {
    if (problem.line > 0) continue;
    for (std::string path = problem.path; !path.empty();) {
      if (const auto found = offsets_.find(path); found != offsets_.end()) {
        problem.line = places.line(found->second);
        problem.column = places.column(found->second);
        break;
      }
      const auto cut = path.find_last_of(".[");
      path.resize(cut == std::string::npos ? 0 : cut);
    }
  }
  std::stable_sort(problems.all().begin(), problems.all().end(), [](const Problem& a, const Problem& b) {
    return std::pair(a.line, a.column) < std::pair(b.line, b.column);
  });
}

}  // namespace capstan
