#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

/// Where the lines of a text begin and end; empty ones are left out.
inline std::vector<std::string_view> template_plugin_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    if (!line.empty()) lines.push_back(line);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  return lines;
}

/// What a model is given of a line, and what it is to say of each token: the next. -100 is what a loss does not count.
inline void template_plugin_sample(std::string_view line, std::int64_t length, std::int64_t padding,
                                   std::int64_t* inputs, std::int64_t* labels) {
  const auto byte = [&](std::int64_t i) { return static_cast<unsigned char>(line[static_cast<std::size_t>(i)]); };
  const auto size = static_cast<std::int64_t>(line.size());
  for (std::int64_t i = 0; i < length; ++i) {
    inputs[i] = i < size ? byte(i) : padding;
    labels[i] = i + 1 < size ? byte(i + 1) : -100;
  }
}
