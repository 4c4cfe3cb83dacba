#include "core/text/numbers.hpp"

#include <cmath>
#include <cstdio>

namespace capstan {
namespace {

template <class... Values>
std::string formatted(const char* format, Values... values) {
  char text[64];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

}  // namespace

std::string grouped(std::int64_t value) {
  std::string text = std::to_string(value);
  const std::size_t sign = value < 0 ? 1 : 0;
  for (std::size_t i = text.size(); i > sign + 3;) {
    i -= 3;
    text.insert(i, 1, ',');
  }
  return text;
}

std::string counted(std::int64_t count, const char* one, const char* several) {
  const std::string noun = count == 1 ? one : several ? several : std::string(one) + "s";
  return grouped(count) + " " + noun;
}

std::string fixed(double value, int digits) { return formatted("%.*f", digits, value); }

std::string short_number(double value) { return formatted("%.4g", value); }

std::string bytes_text(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < std::size(kUnits); ++unit) value /= 1000;
  if (unit == 0) return std::to_string(bytes) + " B";
  return fixed(value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0) + " " + kUnits[unit];
}

std::string duration_text(double seconds) {
  // A pace that is not known yet, or absurdly slow, is no duration.
  if (!(seconds >= 0) || seconds > 1e9) return "-:--:--";
  const auto whole = static_cast<long long>(std::ceil(seconds));
  return formatted("%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace capstan
