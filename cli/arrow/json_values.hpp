#pragma once

#include <arrow/api.h>

#include <cstdint>
#include <string>

namespace capstan::cli {

/// OK where JSON can hold all values of a type; otherwise an error that names the type.
arrow::Status check_json_type(const arrow::DataType& type);

/// Appends the text of a value as JSON: texts, numbers, booleans, lists, structs and maps with text keys as such, a
/// null as null, times and decimals as texts. A struct's members without a value are left out, as a table has every
/// member in every row: so a row of JSON lines that became a row of a table has its own members again. The type must
/// have passed check_json_type(). Returns an error for a number that is not finite.
arrow::Status append_json(const arrow::Array& values, std::int64_t index, std::string& out);

/// Appends a text in quotes, with escapes.
void append_json_text(std::string_view text, std::string& out);

}  // namespace capstan::cli
