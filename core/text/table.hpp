#pragma once

#include <string>
#include <vector>

namespace capstan {

/// Rows of text in columns as wide as their longest cell; the first row is the heading. The last column is not padded.
std::string table_text(const std::vector<std::vector<std::string>>& rows);

/// "a, b, c"
std::string joined(const std::vector<std::string>& words, const char* separator = ", ");

}  // namespace capstan
