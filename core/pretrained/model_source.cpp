#include "core/pretrained/model_source.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "capstan/sdk/mapped_file.hpp"
#include "core/errors.hpp"
#include "core/pretrained/gguf_model.hpp"
#include "core/pretrained/gguf_parts.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kScheme = "hf:";
constexpr const char* kConfigFile = "config.json";
constexpr std::uintmax_t kLargestConfig = 1 << 20;  // bytes; the largest that are known have some 100 kB
constexpr int kDeepestConfig = 32;

/// Keys of config.json that tell who wrote it, in which type its weights are, and where generated texts end.
constexpr const char* kOfTheWriter[] = {"_name_or_path", "transformers_version", "torch_dtype", "dtype",
                                        "use_cache",     "bos_token_id",         "eos_token_id"};

std::string in_quotes(const fs::path& path) { return "'" + path.string() + "'"; }

/// The bytes of a regular file of at most kLargestConfig bytes.
std::string read_small(const fs::path& file) {
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (status.type() == fs::file_type::not_found) {
    throw RuntimeFault(in_quotes(file.parent_path()) + ": it has no " + kConfigFile +
                       ", so it is not a folder of transformers. save_pretrained(FOLDER) writes one.");
  }
  if (error) throw RuntimeFault(in_quotes(file) + ": cannot be read: " + error.message() + ".");
  if (!fs::is_regular_file(status)) throw RuntimeFault(in_quotes(file) + ": is not a regular file.");
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw RuntimeFault(in_quotes(file) + ": cannot be read: " + std::strerror(errno) + ".");
  std::string text(kLargestConfig + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad()) throw RuntimeFault(in_quotes(file) + ": cannot be read.");
  text.resize(static_cast<std::size_t>(stream.gcount()));
  if (text.size() > kLargestConfig) {
    throw RuntimeFault(in_quotes(file) +
                       ": is larger than 1 MiB, and the configuration of a model has a few kilobytes.");
  }
  return text;
}

int depth_of(const Json& value) {
  int deepest = 0;
  if (value.is_array()) {
    for (const Json& item : value.as_array()) deepest = std::max(deepest, depth_of(item));
  } else if (value.is_object()) {
    for (const auto& [key, member] : value.as_object()) deepest = std::max(deepest, depth_of(member));
  } else {
    return 0;
  }
  return deepest + 1;
}

Json read_config(const fs::path& file) {
  const std::string text = read_small(file);
  Json config;
  try {
    config = Json::parse(text);
  } catch (const ConfigError& error) {
    throw RuntimeFault(in_quotes(file) + ": " + error.what());
  }
  if (!config.is_object()) throw RuntimeFault(in_quotes(file) + ": must be an object, got " + config.type_name() + ".");
  if (depth_of(config) > kDeepestConfig) throw RuntimeFault(in_quotes(file) + ": is nested deeper than 32 levels.");
  return config;
}

void refuse_packed(const PretrainedModel& model) {
  const Json* packed = model.config.find("quantization_config");
  if (packed == nullptr || packed->is_null()) return;
  const Json* method = packed->find("quant_method");
  throw RuntimeFault(in_quotes(model.config_file) + ": quantization_config says that its weights are packed" +
                     (method != nullptr && method->is_string() ? " by '" + method->as_string() + "'" : "") +
                     ". Take the folder of the model with weights in float32, bfloat16 or float16.");
}

PretrainedModel read_folder(const fs::path& folder) {
  PretrainedModel model;
  const fs::path file = folder / kConfigFile;
  model.config = read_config(file);
  model.config_file = file.string();
  const Json* type = model.config.find("model_type");
  if (type == nullptr || !type->is_string() || type->as_string().empty()) {
    throw RuntimeFault(in_quotes(file) + ": model_type is " + (type == nullptr ? "missing" : type->dump()) +
                       ", and a text that names the model, such as \"llama\", is needed.");
  }
  model.model_type = type->as_string();
  model.has_remote_code = model.config.find("auto_map") != nullptr;
  refuse_packed(model);
  return model;
}

PretrainedModel read_gguf_model(const std::string& path) {
  try {
    const GgufFiles<sdk::MappedFile> all(path);
    PretrainedModel model;
    model.config = config_of_gguf(all.header, all.bytes(), in_quotes(path));
    model.model_type = model.config.at("model_type").as_string();
    model.config_file = path;
    return model;
  } catch (const sdk::Error& error) {
    throw RuntimeFault(error.what());
  }
}

/// The first difference of two values; `path` is that of both. Null: it is not there.
std::optional<ConfigDifference> difference(const Json* saved, const Json* now, const std::string& path) {
  const auto shown = [](const Json* value) { return value != nullptr ? value->dump() : std::string("nothing"); };
  if (saved == nullptr || now == nullptr || !saved->is_object() || !now->is_object()) {
    if (saved != nullptr && now != nullptr && *saved == *now) return std::nullopt;
    return ConfigDifference{path, shown(saved), shown(now)};
  }
  const std::string begin = path.empty() ? "" : path + ".";
  for (const auto& [key, value] : saved->as_object()) {
    if (auto found = difference(&value, now->find(key), begin + key)) return found;
  }
  for (const auto& [key, value] : now->as_object()) {
    if (saved->find(key) == nullptr) return difference(nullptr, &value, begin + key);
  }
  return std::nullopt;
}

Json without_writer(Json config) {
  for (const char* key : kOfTheWriter) config.erase(key);
  return config;
}

}  // namespace

std::optional<std::string> pretrained_path(std::string_view model) {
  if (model.starts_with(kScheme)) return std::string(model.substr(kScheme.size()));
  if (names_gguf(model)) return std::string(model);
  return std::nullopt;
}

PretrainedModel read_pretrained(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) return read_folder(path);
  if (status.type() == fs::file_type::not_found) {
    throw RuntimeFault(in_quotes(path) +
                       ": there is no such folder or file. Models are read from this machine alone: "
                       "fetch the folder first, with config.json and *.safetensors.");
  }
  if (error) throw RuntimeFault(in_quotes(path) + ": " + error.message() + ".");
  if (names_gguf(path)) return read_gguf_model(path);
  throw RuntimeFault(in_quotes(path) + ": is neither a folder of transformers nor a file *.gguf.");
}

std::optional<ConfigDifference> config_difference(const Json& saved, const Json& now) {
  const Json before = without_writer(saved), after = without_writer(now);
  return difference(&before, &after, "");
}

const Json* pretrained_config(const Json& configuration) {
  const Json* found = &configuration;
  for (const char* key : {"capstan", "model", "params", "config"}) {
    if (found != nullptr) found = found->find(key);
  }
  return found != nullptr && found->is_object() ? found : nullptr;
}

}  // namespace capstan
