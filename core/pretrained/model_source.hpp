#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/json.hpp"

namespace capstan {

/// The folder or file in the place of a model's type: of "hf:FOLDER", "hf:FILE.gguf" and "FILE.gguf"; nothing for
/// another text.
std::optional<std::string> pretrained_path(std::string_view model);

/// A model that others have trained: a folder of transformers, or a GGUF file.
struct PretrainedModel {
  std::string model_type;
  Json config;                   // the whole object of config.json, or what a GGUF file says in its terms
  std::string config_file;       // where it stands, for messages
  bool has_remote_code = false;  // config.json names Python code of the folder
};

/// Reads what a folder or a file says of its model; no weights, and none of its code. Throws RuntimeFault: a path that
/// is neither, a config.json that is missing, larger than 1 MiB or not an object, packed weights.
PretrainedModel read_pretrained(const std::string& path);

/// The config.json of transformers that capstan.model of a configuration holds; null where the model is built in
/// another way.
const Json* pretrained_config(const Json& configuration);

/// A key, as a path with dots, and its two values as JSON; a value that is not there is "nothing".
struct ConfigDifference {
  std::string key, saved, now;
};

/// The first key in which two config.json differ, but for keys that change no weight and no result: the versions and
/// types that they were written with.
std::optional<ConfigDifference> config_difference(const Json& saved, const Json& now);

}  // namespace capstan
