#pragma once

#include <string>

#include "cli/arguments.hpp"

namespace capstan::cli {

/// Prints `arguments.rows` rows of a file from `arguments.first` on, as text: a heading for each document, which tells
/// its row, and behind it the text. Throws RuntimeFault and sdk::Error naming the file.
void show_rows(const DataShowArguments& arguments, const std::string& format);

}  // namespace capstan::cli
