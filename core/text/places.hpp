#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/json.hpp"
#include "core/text/problem.hpp"

namespace capstan {

/// Turns byte offsets of a text into lines and columns.
class TextPlaces {
 public:
  explicit TextPlaces(std::string_view text);

  int line(std::size_t offset) const;    // 1-based
  int column(std::size_t offset) const;  // 1-based, in bytes

 private:
  std::vector<std::size_t> line_starts_;
};

/// "a" and "b" make "a.b"; an empty parent makes "b".
std::string join_path(const std::string& parent, std::string_view key);
/// "a" and 2 make "a[2]".
std::string element_path(const std::string& parent, std::size_t index);

/// Where each key path of some documents stands in the text.
class PathPlaces {
 public:
  /// Adds the paths of a document; those already known stay.
  void add(const Json& document);
  /// Gives each problem that has none the place of its path, or of the nearest object around it, and sorts all by
  /// place.
  void locate(Problems& problems, const TextPlaces& places) const;

 private:
  void add(const std::string& path, const Json& value);

  std::map<std::string, std::size_t> offsets_;
};

}  // namespace capstan
