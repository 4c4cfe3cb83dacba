#pragma once

#include <optional>
#include <string>
#include <vector>

namespace capstan {

/// Where a launcher is called: HOST:PORT, or [HOST]:PORT where HOST is an address of IPv6.
struct LauncherAddress {
  std::string host;
  int port = 0;

  /// Nothing where the text is not of that form.
  static std::optional<LauncherAddress> of(const std::string& text);
  /// Of addresses between commas. Empty where one of them is not of that form.
  static std::vector<LauncherAddress> list_of(const std::string& text);
  std::string text() const;
  bool operator==(const LauncherAddress&) const = default;
};

}  // namespace capstan
