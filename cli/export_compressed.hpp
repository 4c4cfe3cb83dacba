#pragma once

#include <c10/core/ScalarType.h>

#include <filesystem>
#include <optional>
#include <string>

#include "cli/arguments.hpp"

namespace capstan::cli {

/// Writes the weights of checkpoint <dir>/<tag> with `arguments.compressed` as the codes that were trained, and any to
/// GGUF; prints what became of how many bytes.
void export_compressed(const ExportArguments& arguments, const std::filesystem::path& dir, const std::string& tag,
                       std::optional<at::ScalarType> dtype);

}  // namespace capstan::cli
