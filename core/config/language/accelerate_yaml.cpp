#include "core/config/language/accelerate_yaml.hpp"

#include <charconv>
#include <map>
#include <vector>

#include "core/text/json.hpp"

namespace capstan {
namespace {

using Values = std::map<std::string, std::string, std::less<>>;

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r'\"");
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r'\"") - first + 1);
}

/// The keys at the left margin, and those of deepspeed_config with its name and a dot before them. accelerate writes
/// one key a line and nothing that is nested deeper.
Values keys_of(std::string_view text) {
  Values values;
  std::string section;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const auto colon = line.find(':');
    const bool comment = line.find_first_not_of(" \t") == line.find('#');
    if (colon == std::string_view::npos || comment) continue;
    const std::string key(trimmed(line.substr(0, colon)));
    const std::string_view rest = line.substr(colon + 1);
    const std::string value(trimmed(rest.substr(0, rest.find(" #"))));
    const bool inside = line.front() == ' ' || line.front() == '\t';
    if (!inside) section = key;
    values.emplace(inside ? section + "." + key : key, value);
  }
  return values;
}

std::string value_of(const Values& values, std::string_view key) {
  const auto found = values.find(key);
  return found == values.end() ? "" : found->second;
}

std::optional<double> number_of(const Values& values, std::string_view key) {
  const std::string text = value_of(values, key);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

Json whole_or_fraction(double number) {
  const auto whole = static_cast<std::int64_t>(number);
  return static_cast<double>(whole) == number ? Json(whole) : Json(number);
}

/// Translates the keys of deepspeed_config to a configuration.
Json configuration(const Values& values) {
  const auto deepspeed = [&](const char* key) { return std::string("deepspeed_config.") + key; };
  Json json = Json::object();
  json["train_micro_batch_size_per_gpu"] = std::int64_t{1};
  for (const char* key : {"gradient_accumulation_steps", "gradient_clipping"}) {
    if (const auto number = number_of(values, deepspeed(key))) json[key] = whole_or_fraction(*number);
  }
  for (const char* type : {"fp16", "bf16"}) {
    if (value_of(values, "mixed_precision") != type) continue;
    json[type] = Json::object();
    json[type]["enabled"] = true;
  }
  const auto stage = number_of(values, deepspeed("zero_stage"));
  if (!stage) return json;
  Json zero = Json::object();
  zero["stage"] = whole_or_fraction(*stage);
  for (const char* section : {"offload_optimizer", "offload_param"}) {
    const std::string device = value_of(values, deepspeed(section) + "_device");
    if (device != "cpu" && device != "nvme") continue;
    zero[section] = Json::object();
    zero[section]["device"] = device;
    const std::string path = value_of(values, deepspeed(section) + "_nvme_path");
    if (device == "nvme") zero[section]["nvme_path"] = path.empty() ? "/local_nvme" : path;
  }
  if (value_of(values, deepspeed("zero3_save_16bit_model")) == "true") {
    zero["stage3_gather_16bit_weights_on_model_save"] = true;
  }
  json["zero_optimization"] = std::move(zero);
  return json;
}

}  // namespace

std::optional<std::string> accelerate_yaml(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || text[first] == '{') return std::nullopt;
  const Values values = keys_of(text);
  if (!values.contains("compute_environment") && !values.contains("deepspeed_config")) return std::nullopt;
  const std::string what = "this is a YAML file of Hugging Face accelerate. ";
  if (const std::string file = value_of(values, "deepspeed_config.deepspeed_config_file"); !file.empty()) {
    return what + "Its deepspeed_config_file names the configuration: give '" + file + "'.";
  }
  return what + "Write what its deepspeed_config says to a .json file, with your micro-batch: " +
         configuration(values).dump() + ".";
}

}  // namespace capstan
