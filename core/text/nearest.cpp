#include "core/text/nearest.hpp"

#include <algorithm>
#include <cctype>
#include <numeric>

namespace capstan {
namespace {

// Names longer than this are no slips of the pen; the limit keeps the distance cheap for hostile input.
constexpr std::size_t kLongestName = 128;

bool is_separator(char c) { return c == '-' || c == '_'; }

std::string folded(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (!is_separator(c)) out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

std::vector<std::string> sorted_words(std::string_view name) {
  std::vector<std::string> words(1);
  for (const char c : name) {
    if (is_separator(c)) {
      words.emplace_back();
    } else {
      words.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  std::sort(words.begin(), words.end());
  return words;
}

std::size_t common_start(std::string_view a, std::string_view b) {
  const auto ends = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<std::size_t>(ends.first - a.begin());
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  std::iota(previous.begin(), previous.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, replaced});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) current[j] = std::min(current[j], before[j - 2] + 1);
    }
    std::swap(before, previous);
    std::swap(previous, current);
  }
  return previous[b.size()];
}

std::size_t name_distance(std::string_view a, std::string_view b) {
  const std::string x = folded(a), y = folded(b);
  if (x == y) return 0;
  if (x.size() == y.size() && sorted_words(a) == sorted_words(b)) return 1;
  return edit_distance(x, y);
}

std::size_t slip_limit(std::string_view typed) {
  const std::size_t length = folded(typed).size();
  if (length > kLongestName) return 0;
  return std::clamp<std::size_t>(length / 3, 1, 3);
}

std::optional<std::string> nearest_name(std::string_view typed, const std::vector<std::string>& known) {
  const std::size_t limit = slip_limit(typed);
  if (limit == 0) return std::nullopt;
  const std::size_t length = folded(typed).size();
  const std::string* nearest = nullptr;
  std::size_t nearest_distance = limit + 1;
  for (const auto& name : known) {
    if (name.size() > kLongestName) continue;
    // Each letter more or less costs one edit.
    const auto letters = name.size() - static_cast<std::size_t>(std::count_if(name.begin(), name.end(), is_separator));
    if (letters > length + nearest_distance || length > letters + nearest_distance) continue;
    const std::size_t distance = name_distance(typed, name);
    // Where two are as near, the one that begins alike wins: first letters are seldom wrong.
    const bool begins_alike =
        nearest && distance == nearest_distance && common_start(typed, name) > common_start(typed, *nearest);
    if (distance < nearest_distance || begins_alike) {
      nearest = &name;
      nearest_distance = distance;
    }
  }
  return nearest ? std::optional(*nearest) : std::nullopt;
}

std::string suggestion(std::string_view typed, const std::vector<std::string>& known) {
  const auto nearest = nearest_name(typed, known);
  return nearest ? " Did you mean '" + *nearest + "'?" : "";
}

}  // namespace capstan
