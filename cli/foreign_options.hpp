#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace capstan::cli {

/// The option of a command that sets a key of the configuration, or "".
using OptionOfKey = std::function<std::string(std::string_view path)>;

/// Advice on an option of DeepSpeed's, Hugging Face's or a launcher's scripts, and on a key of the configuration that
/// was given as an option: " Write --set optimizer.params.lr=3e-4.", or "". `word` is the option as it was typed, with
/// its value if that stands behind a '='; `next` is the word after it.
/// `counts` is the command's own option for a number of processes, "--world", or "".
std::string foreign_option_advice(const std::string& word, const std::string& next, const OptionOfKey& option_of,
                                  const std::string& counts);

}  // namespace capstan::cli
