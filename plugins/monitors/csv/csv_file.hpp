#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace capstan::monitors {

/// The file of a tag: "Train/Samples/lr" -> "Train_Samples_lr.csv".
std::string csv_file_name(std::string_view tag);

/// The first line for a tag, its name in quotes where CSV needs them: "step,lr\r\n".
std::string csv_header(std::string_view tag);

/// "32,0.001\r\n"; the value in the shortest form that reads back the same, as Python's repr writes it.
std::string csv_row(std::int64_t x, double value);

/// Takes out what a resumed run will write again: rows beyond `resumed_at`, and a last line that was cut off. Files
/// that do not begin as ours do are left alone. Throws std::runtime_error naming the file.
void cut_rows_beyond(const std::filesystem::path& file, std::optional<std::int64_t> resumed_at);

/// As cut_rows_beyond(), of lines of json_text(). A run that begins anew writes those before its first step again.
void cut_texts_beyond(const std::filesystem::path& file, std::optional<std::int64_t> resumed_at);

/// Throws std::runtime_error where a file is there, is not empty and does not begin as such lines do.
void check_texts(const std::filesystem::path& file);

}  // namespace capstan::monitors
