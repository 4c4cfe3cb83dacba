#include "core/config/language/validator.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "core/schema/value.hpp"
#include "core/text/nearest.hpp"
#include "core/text/places.hpp"

namespace capstan {
namespace {

bool is_auto(const Json& value) { return value.is_string() && value.as_string() == "auto"; }

/// Sections in which "auto" stands for the default, besides the keys of optimizer.params and scheduler.params.
constexpr std::array<std::string_view, 14> kSectionsWithAuto = {
    "zero_optimization",   "fp16",  "bf16",         "amp",     "tensorboard",   "wandb",
    "csv_monitor",         "comet", "comms_logger", "compile", "hybrid_engine", "tensor_parallel",
    "weight_quantization", "timers"};

constexpr std::array<std::string_view, 5> kKeysWithAuto = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                                           "gradient_accumulation_steps", "gradient_clipping",
                                                           "steps_per_print"};

/// Sizes of buckets that follow from the model's hidden size h.
std::optional<Json> bucket_size(std::string_view path, std::int64_t h) {
  if (path == "zero_optimization.reduce_bucket_size") return Json(h * h);
  if (path == "zero_optimization.stage3_prefetch_bucket_size") return Json(h * h * 9 / 10);
  if (path == "zero_optimization.stage3_param_persistence_threshold") return Json(h * 10);
  return std::nullopt;
}

class Walker {
 public:
  Walker(const ValidatorOptions& options, Problems& problems, Validated& out)
      : options_(options), problems_(problems), out_(out) {}

  /// The members of an object: given ones checked, others at their defaults.
  Json section(const SchemaNode& node, const Json* given, const std::string& path) {
    Json effective = Json::object();
    if (given && given->offset()) effective.set_offset(*given->offset());
    for (const auto& member : node.members) {
      const Json* value = given ? given->find(member->spec.name) : nullptr;
      std::optional<Json> result = one(*member, value, join_path(path, member->spec.name), given != nullptr);
      if (result) effective[member->spec.name] = std::move(*result);
    }
    if (given) others(node, *given, path, effective);
    return effective;
  }

 private:
  /// Members that no row names: those with names of the user's choice, comments, and unknown ones.
  void others(const SchemaNode& node, const Json& given, const std::string& path, Json& effective) {
    for (const auto& [key, value] : given.as_object()) {
      const SchemaNode* member = node.member(key);
      if (is_comment(key) || (member && member != node.any_member.get())) continue;
      if (path.empty() && std::find(options_.foreign_sections.begin(), options_.foreign_sections.end(), key) !=
                              options_.foreign_sections.end()) {
        continue;
      }
      const std::string where = join_path(path, key);
      if (!member) {
        out_.unknown.push_back({where, path, key, value, "", {}});
        continue;
      }
      if (auto result = one(*member, &value, where, true)) effective[key] = std::move(*result);
    }
  }

  std::optional<Json> one(const SchemaNode& node, const Json* given, const std::string& path, bool parent_given) {
    if (given && given->is_null() && !node.has(kNullMeans)) given = nullptr;
    if (given && is_auto(*given) && !node.has(kOrAuto) && !node.is_section())
      return automatic(node, *given, path, parent_given);
    if (!given) return absent(node, path, parent_given);
    out_.origins[path] = "file";
    if (node.is_section()) return object(node, *given, path);
    if (given->is_null()) return Json();
    if (node.has(kOrAuto) && is_auto(*given)) return *given;
    if (node.element && given->is_array()) return list(node, *given, path);
    if (options_.tuning && tunable(node, *given)) return *given;
    return converted(node, *given, path);
  }

  std::optional<Json> absent(const SchemaNode& node, const std::string& path, bool parent_given) {
    if (node.is_section()) {
      if (node.has(kOptional)) return std::nullopt;
      return section(node, nullptr, path);
    }
    if (node.spec.required && parent_given) {
      problems_.error(path, "is missing; it must be given (" + node.spec.summary + ")" + choices_text(node.spec));
      return std::nullopt;
    }
    if (!node.spec.fallback) return std::nullopt;
    out_.origins[path] = "default";
    return node.spec.fallback;
  }

  static std::string choices_text(const KeySpec& spec) {
    std::string text;
    for (const Json& choice : spec.choices) text += (text.empty() ? " One of " : ", ") + shown(choice);
    return text.empty() ? "" : text + ".";
  }

  std::optional<Json> object(const SchemaNode& node, const Json& given, const std::string& path) {
    if (!given.is_object()) {
      const bool switched = given.is_bool() || is_auto(given);
      const bool device = given.is_string() && !is_auto(given) && node.member("device") != nullptr;
      const bool has_switch = node.member("enabled") != nullptr && node.member("enabled") != node.any_member.get();
      problems_.error(path, "the section must be an object, got " + shown(given) + "." +
                                (switched && has_switch ? " Write {\"enabled\": " + shown(given) + "}."
                                 : device               ? " Write {\"device\": " + shown(given) + "}."
                                                        : ""));
      return std::nullopt;
    }
    return section(node, &given, path);
  }

  std::optional<Json> list(const SchemaNode& node, const Json& given, const std::string& path) {
    Json out = Json::array();
    for (std::size_t i = 0; i < given.size(); ++i) {
      const Json& item = given.as_array()[i];
      const std::string where = element_path(path, i);
      if (auto result = node.element->is_section() ? object(*node.element, item, where)
                                                   : one(*node.element, &item, where, true)) {
        out.push_back(std::move(*result));
      }
    }
    return out;
  }

  std::optional<Json> automatic(const SchemaNode& node, const Json& given, const std::string& path, bool parent_given) {
    if (!auto_means_default(path)) {
      problems_.error(
          path, "\"auto\" is not supported here; " +
                    (node.spec.fallback ? "leave the key out for " + shown(*node.spec.fallback) + ", or write a value."
                                        : std::string("write a value or leave the key out.")));
      return std::nullopt;
    }
    std::optional<Json> value = options_.hidden_size ? bucket_size(path, *options_.hidden_size) : std::nullopt;
    if (value) {
      value->set_offset(given.offset().value_or(0));
      out_.origins[path] = "derived";
    } else {
      value = absent(node, path, parent_given);
    }
    out_.autos.push_back({path, value.value_or(Json())});
    return value;
  }

  /// While autotuning, values of zero_optimization and the micro-batch may be lists to search, and the stage "all".
  bool tunable(const SchemaNode& node, const Json& given) const {
    const bool space = node.path.starts_with("zero_optimization.") || node.path == "train_micro_batch_size_per_gpu";
    if (!space || node.spec.type == KeySpec::Type::kArray) return false;
    if (node.path == "zero_optimization.stage" && given.is_string() && given.as_string() == "all") return true;
    if (!given.is_array() || given.size() == 0) return false;
    return std::all_of(given.as_array().begin(), given.as_array().end(),
                       [&](const Json& item) { return convert(item, node.spec).value.has_value(); });
  }

  std::optional<Json> converted(const SchemaNode& node, const Json& given, const std::string& path) {
    Converted result = convert(given, node.spec);
    if (!result.remark.empty()) problems_.warning(path, result.remark);
    if (!result.value) {
      // false for a number that has no default is how people write that they want none.
      const bool none = given.is_bool() && !given.as_bool() && !node.spec.fallback;
      const bool dynamic = node.path == "fp16.loss_scale" && given == Json("dynamic");
      if (const std::string_view advice = advice_on_gpu(node, given); !advice.empty()) {
        if (const auto near = result.fault.find(" Did you mean"); near != std::string::npos) result.fault.erase(near);
        result.fault += advice;
      }
      problems_.error(path, result.fault + (none      ? " Leave the key out to have none."
                                            : dynamic ? " 0 is a dynamic one."
                                                      : ""));
    }
    return std::move(result.value);
  }

  /// For words that mean a GPU where the language has another one; "gpu" itself is near to "cpu".
  static std::string_view advice_on_gpu(const SchemaNode& node, const Json& given) {
    if (!given.is_string()) return "";
    const bool gpu = name_distance(given.as_string(), "gpu") == 0;
    if (node.path == "capstan.run.device" && gpu) return " Did you mean 'cuda'?";
    const bool offload = node.path == "zero_optimization.offload_optimizer.device" ||
                         node.path == "zero_optimization.offload_param.device";
    if (!offload || !(gpu || name_distance(given.as_string(), "cuda") == 0)) return "";
    return " \"none\" leaves it in the memory of the GPU.";
  }

  const ValidatorOptions& options_;
  Problems& problems_;
  Validated& out_;
};

}  // namespace

bool auto_means_default(std::string_view path) {
  const std::string_view section = path.substr(0, path.find('.'));
  return std::find(kKeysWithAuto.begin(), kKeysWithAuto.end(), path) != kKeysWithAuto.end() ||
         std::find(kSectionsWithAuto.begin(), kSectionsWithAuto.end(), section) != kSectionsWithAuto.end();
}

bool is_comment(std::string_view key) { return key == "comment" || key.starts_with('_'); }

Validated validate(const Json& document, const ValidatorOptions& options, Problems& problems) {
  Validated out;
  out.effective = Walker(options, problems, out).section(language(), &document, "");
  return out;
}

}  // namespace capstan
