#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace capstan::cli {

/// Logs a warning where data was tokenized with another tokenizer than the one that lies beside the weights: their
/// records tell. Data without a record, and weights without tokenizer.json, say nothing. Throws RuntimeFault for a
/// record that cannot be read.
void warn_of_another_tokenizer(const std::vector<std::string>& data, const std::filesystem::path& weights);

}  // namespace capstan::cli
