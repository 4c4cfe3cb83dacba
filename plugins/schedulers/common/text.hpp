#pragma once

#include <charconv>
#include <string>

namespace capstan::schedulers {

/// The shortest text that reads back as the number: "0.001".
inline std::string number_text(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

}  // namespace capstan::schedulers
