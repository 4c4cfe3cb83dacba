#include "core/config/language/accelerate.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config/language/language.hpp"
#include "core/text/places.hpp"

namespace capstan {
namespace {

bool is_of_accelerate(const Json& document) {
  const auto& members = document.as_object();
  const bool ours = std::any_of(members.begin(), members.end(),
                                [](const auto& member) { return language().member(member.first) != nullptr; });
  const Json* section = document.find("deepspeed_config");
  return !ours && (document.find("compute_environment") || (section && section->is_object()));
}

bool is_half(std::string_view type) { return type == "fp16" || type == "bf16"; }

std::string text_of(const Json* value) { return value && value->is_string() ? value->as_string() : ""; }

/// Translates the keys, and remembers those that nothing came of.
class Translation {
 public:
  explicit Translation(const Json& document) : document_(document), section_(*document.find("deepspeed_config")) {}

  Json configuration() {
    Json json = Json::object();
    json["train_micro_batch_size_per_gpu"] = "auto";
    copy("gradient_accumulation_steps", json, "gradient_accumulation_steps");
    copy("gradient_clipping", json, "gradient_clipping");
    precision(json);
    Json zero = Json::object();
    copy("zero_stage", zero, "stage");
    for (const char* device : {"offload_optimizer", "offload_param"}) offload(device, zero);
    copy("zero3_save_16bit_model", zero, "stage3_gather_16bit_weights_on_model_save");
    if (zero.size() > 0) json["zero_optimization"] = std::move(zero);
    return json;
  }

  /// "debug, deepspeed_config.zero3_init_flag"
  std::string without_effect() const {
    std::string text;
    const auto add = [&](const std::string& name) { text += (text.empty() ? "" : ", ") + name; };
    for (const auto& [key, value] : document_.as_object()) {
      const bool type = key == "mixed_precision" && (is_half(text_of(&value)) || text_of(&value) == "no");
      if (key != "deepspeed_config" && !type && !value.is_null()) add(key);
    }
    for (const auto& [key, value] : section_.as_object()) {
      const bool taken = std::find(taken_.begin(), taken_.end(), key) != taken_.end();
      if (!taken && !value.is_null()) add(join_path("deepspeed_config", key));
    }
    return text;
  }

 private:
  const Json* take(const std::string& key) {
    const Json* value = section_.find(key);
    if (!value || value->is_null()) return nullptr;
    taken_.push_back(key);
    return value;
  }

  void copy(const std::string& key, Json& to, const char* name) {
    if (const Json* value = take(key)) to[name] = *value;
  }

  void precision(Json& json) const {
    const Json* type = document_.find("mixed_precision");
    if (!is_half(text_of(type))) return;
    json[text_of(type)] = Json::object();
    json[text_of(type)]["enabled"] = true;
  }

  void offload(const std::string& name, Json& zero) {
    const Json *device = take(name + "_device"), *path = take(name + "_nvme_path");
    if (!device || text_of(device) == "none") return;
    Json section = Json::object();
    section["device"] = *device;
    if (text_of(device) == "nvme") section["nvme_path"] = path ? *path : Json("/local_nvme");
    section.set_offset(device->offset().value_or(0));
    zero[name] = std::move(section);
  }

  const Json &document_, &section_;
  std::vector<std::string> taken_;
};

}  // namespace

std::optional<Json> read_accelerate(Json document, Problems& problems) {
  if (!is_of_accelerate(document)) return document;
  const std::string file = "this is a file of Hugging Face accelerate";
  const Json* section = document.find("deepspeed_config");
  if (!section || !section->is_object()) {
    problems.error("", file + " without a deepspeed_config: it says nothing of DeepSpeed. Give a configuration.");
    return std::nullopt;
  }
  if (const std::string named = text_of(section->find("deepspeed_config_file")); !named.empty()) {
    problems.error("", file + ". Its deepspeed_config_file names the configuration: give '" + named + "'.");
    return std::nullopt;
  }
  Translation translation(document);
  Json made = translation.configuration();
  const std::string idle = translation.without_effect();
  problems.notice(
      "", file + ", read as " + made.dump() + "." + (idle.empty() ? "" : " Without effect here: " + idle + "."));
  return made;
}

}  // namespace capstan
