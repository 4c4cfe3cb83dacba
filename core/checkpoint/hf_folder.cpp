#include "core/checkpoint/hf_folder.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <system_error>
#include <variant>

#include "core/checkpoint/gguf_tensors.hpp"
#include "core/checkpoint/output_file.hpp"
#include "core/data/mapped_file.hpp"
#include "core/errors.hpp"
#include "core/host_tensor.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr const char *kConfig = "config.json", *kWeights = "model.safetensors",
                     *kShards = "model.safetensors.index.json";

std::string text_of(const Json& object, const char* key) {
  const Json* value = object.find(key);
  return value ? value->as_string() : "";
}

std::vector<std::string> texts_of(const Json& object, const char* key) {
  std::vector<std::string> texts;
  if (const Json* list = object.find(key)) {
    for (const Json& item : list->as_array()) texts.push_back(item.as_string());
  }
  return texts;
}

Json read_json(const fs::path& file) {
  const MappedFile mapped(file);
  try {
    return Json::parse({reinterpret_cast<const char*>(mapped.data()), mapped.size()});
  } catch (const ConfigError& error) {
    throw RuntimeFault(file.string() + ": " + error.what());
  }
}

/// Refuses the config.json, or what a GGUF file says in its terms, of a model that computes something else.
void check_config(const Json& config, const fs::path& file, const HfFormat& format) {
  for (const std::string& key : format.must_agree) {
    const Json *theirs = config.find(key), *ours = format.config.find(key);
    if (!theirs || !ours || *theirs == *ours) continue;
    throw RuntimeFault(file.string() + ": " + key + " is " + theirs->dump() + ", and that of model '" + format.model +
                       "' is " + ours->dump() + ". Give the model the parameters of this one, where it has them.");
  }
}

/// A file's name that an index gives: it must stay in the folder.
fs::path shard(const fs::path& folder, const std::string& name) {
  const fs::path path(name);
  if (path.filename() != path || name == "..") {
    throw RuntimeFault((folder / kShards).string() + ": '" + name + "' is not a file's name.");
  }
  return folder / path;
}

/// Tensors by their names in transformers.
using Tensors = std::map<std::string, SafetensorsEntry>;

Tensors read_tensors(const fs::path& folder) {
  std::error_code error;
  std::set<fs::path> files;
  if (fs::exists(folder / kWeights, error)) {
    files.insert(folder / kWeights);
  } else if (fs::exists(folder / kShards, error)) {
    const Json index = read_json(folder / kShards);
    const Json* map = index.find("weight_map");
    if (!map || !map->is_object()) throw RuntimeFault((folder / kShards).string() + ": it has no weight_map.");
    for (const auto& [tensor, file] : map->as_object()) {
      files.insert(shard(folder, file.is_string() ? file.as_string() : ""));
    }
  } else {
    throw RuntimeFault("'" + folder.string() + "': it has neither " + kWeights + " nor " + kShards +
                       ". transformers writes them with save_pretrained(FOLDER, safe_serialization=True).");
  }
  Tensors tensors;
  for (const fs::path& file : files) {
    for (SafetensorsEntry& entry : read_safetensors(file)) tensors.emplace(entry.name, entry);
  }
  return tensors;
}

/// The entry under its name in the folder, a matrix that lies the other way round there transposed; without a copy, or
/// where it is not in memory with one, in `room`, while it is written.
SafetensorsEntry turned(const SafetensorsEntry& entry, const HfFormat::Tensor& place, const std::string& name,
                        const std::string& where, const std::shared_ptr<ValuesRoom>& room = nullptr) {
  if (!place.transposed) return {name, entry.values, entry.read};
  if (entry.values.dim() != 2) {
    throw RuntimeFault(where + ": '" + place.name + "' has " + std::to_string(entry.values.dim()) +
                       " dimensions, and a matrix is expected.");
  }
  if (!entry.read) return {name, entry.values.t()};
  const auto read = [entry, room, whole = at::Tensor()](std::int64_t from, std::int64_t count) mutable {
    if (from == 0 || !whole.defined()) {
      whole = room ? room->of(entry.values.numel(), entry.values.scalar_type())
                   : host_empty({entry.values.numel()}, entry.values.scalar_type());
      const at::Tensor matrix = entry.read(0, entry.values.numel()).view(entry.values.sizes());
      whole.view(entry.values.t().sizes()).copy_(matrix.t());
    }
    const at::Tensor piece = whole.narrow(0, from, count);
    if (from + count == whole.numel()) whole = at::Tensor();
    return piece;
  };
  return {name, entry.values.t(), read};
}

/// The tensors by the model's own names. Throws RuntimeFault naming what lacks and what has no place.
std::vector<SafetensorsEntry> placed(const Tensors& there, const HfFormat& format, const std::string& where) {
  const bool prefixed =
      std::any_of(there.begin(), there.end(), [&](const auto& one) { return one.first.starts_with(format.prefix); });
  const auto name_there = [&](const std::string& name) {
    return !prefixed && name.starts_with(format.prefix) ? name.substr(format.prefix.size()) : name;
  };

  std::vector<SafetensorsEntry> weights;
  std::string missing;
  std::set<std::string> used;
  for (const HfFormat::Tensor& place : format.tensors) {
    auto found = there.find(name_there(place.name));
    if (found == there.end() && !place.otherwise.empty()) found = there.find(name_there(place.otherwise));
    if (found == there.end()) {
      missing += " '" + name_there(place.name) + "'";
      continue;
    }
    used.insert(found->first);
    weights.push_back(turned(found->second, place, place.parameter, where));
  }
  std::string unexpected;
  for (const auto& [name, values] : there) {
    const bool ignored = std::any_of(format.ignored.begin(), format.ignored.end(),
                                     [&, full = name](const std::string& end) { return full.ends_with(end); });
    if (!used.contains(name) && !ignored && !format.is_part) unexpected += " '" + name + "'";
  }
  if (!missing.empty() || !unexpected.empty()) {
    throw RuntimeFault(where + ": does not fit model '" + format.model + "'." +
                       (missing.empty() ? "" : " Missing:" + missing + ".") +
                       (unexpected.empty() ? "" : " Without a place in the model:" + unexpected + "."));
  }
  return weights;
}

}  // namespace

HfFormat hf_format(const Json& description, const std::string& model) {
  const Json* told = description.find("hf");
  if (!told) {
    throw PluginError("model '" + model +
                      "': does not say how its weights are called in transformers (\"hf\" in what it tells of itself). "
                      "Use safetensors or pt instead.");
  }
  if (const Json* refused = told->find("refused")) {
    throw RuntimeFault("model '" + model + "': " + (refused->is_string() ? refused->as_string() : refused->dump()));
  }
  try {
    HfFormat format;
    format.model = model;
    format.config = told->at("config");
    format.must_agree = texts_of(*told, "must_agree");
    format.prefix = text_of(*told, "prefix");
    format.layers_key = text_of(*told, "layers_key");
    format.ignored = texts_of(*told, "ignored");
    for (const Json& tensor : told->at("tensors").as_array()) {
      const Json* transposed = tensor.find("transposed");
      format.tensors.push_back({tensor.at("parameter").as_string(), tensor.at("name").as_string(),
                                text_of(tensor, "or"), transposed && transposed->as_bool()});
    }
    if (!format.config.is_object()) throw std::out_of_range("config is not an object");
    return format;
  } catch (const std::logic_error& error) {
    throw PluginError("model '" + model + "': what it says of transformers' format is malformed: " + error.what());
  } catch (const std::bad_variant_access&) {
    throw PluginError("model '" + model + "': what it says of transformers' format has values of a wrong type.");
  }
}

void write_hf_folder(const fs::path& folder, const HfFormat& format, const std::vector<SafetensorsEntry>& weights) {
  std::vector<SafetensorsEntry> entries;
  std::string homeless, dtype;
  const auto room = std::make_shared<ValuesRoom>();
  for (const SafetensorsEntry& weight : weights) {
    const auto place = std::find_if(format.tensors.begin(), format.tensors.end(),
                                    [&](const auto& one) { return one.parameter == weight.name; });
    if (place == format.tensors.end()) {
      homeless += " '" + weight.name + "'";
      continue;
    }
    entries.push_back(turned(weight, *place, place->name, "'" + weight.name + "'", room));
    const at::ScalarType type = weight.values.scalar_type();
    if (dtype.empty()) dtype = type == at::kBFloat16 ? "bfloat16" : type == at::kHalf ? "float16" : "float32";
  }
  if (!homeless.empty()) {
    throw RuntimeFault("model '" + format.model + "': has no name in transformers for" + homeless + ".");
  }
  create_folders(folder);
  write_aside(folder / kWeights, [&](const fs::path& aside) {
    Json metadata = Json::object();
    metadata["format"] = "pt";
    write_safetensors(aside, entries, metadata);
  });
  Json config = format.config;
  // transformers 5 has another key than those before.
  config[config.find("dtype") != nullptr ? "dtype" : "torch_dtype"] = dtype;
  write_aside(folder / kConfig, [&](const fs::path& aside) { write_file(aside, config.dump(2) + "\n"); });
}

std::vector<SafetensorsEntry> read_hf_folder(const fs::path& folder, const HfFormat& format) {
  const std::string where = "'" + folder.string() + "'";
  std::error_code error;
  if (!fs::exists(folder / kConfig, error)) {
    throw RuntimeFault(where + ": it has no " + kConfig + ", so it is not a folder of transformers.");
  }
  check_config(read_json(folder / kConfig), folder / kConfig, format);
  return placed(read_tensors(folder), format, where);
}

std::vector<SafetensorsEntry> read_gguf_weights(const fs::path& file, const HfFormat& format) {
  const GgufWeights weights(file);
  check_config(weights.config(), file, format);
  std::vector<std::string> names;
  for (const HfFormat::Tensor& tensor : format.tensors) {
    names.push_back(tensor.name);
    if (!tensor.otherwise.empty()) names.push_back(tensor.otherwise);
  }
  return placed(weights.read(names), format, "'" + file.string() + "'");
}

std::optional<std::int64_t> hf_layers(const fs::path& folder, const HfFormat& format) {
  const Json config = read_json(folder / kConfig);
  const Json* count = config.find(format.layers_key);
  if (count == nullptr || !count->is_integer()) return std::nullopt;
  return count->as_integer();
}

}  // namespace capstan
