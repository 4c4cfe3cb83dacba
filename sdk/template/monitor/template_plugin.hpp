#pragma once

#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>

/// {"tag": "Train/Samples/lr", "x": 32, "value": 0.001}, with null for what JSON has no number for.
inline std::string template_plugin_line(std::string_view tag, long long x, double value) {
  std::string name;
  for (const char c : tag) {
    if (c == '"' || c == '\\') name += '\\';
    name += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  char number[32] = "null";
  if (std::isfinite(value)) std::snprintf(number, sizeof number, "%.17g", value);
  return "{\"tag\": \"" + name + "\", \"x\": " + std::to_string(x) + ", \"value\": " + number + "}\n";
}
