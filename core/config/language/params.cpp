#include "core/config/language/params.hpp"

#include <algorithm>
#include <utility>

#include "core/schema/value.hpp"
#include "core/text/places.hpp"

namespace capstan {
namespace {

bool is_auto(const Json& value) { return value.is_string() && value.as_string() == "auto"; }

/// The member that `spec` names, by its name or an alias. Reports when both are given.
const Json* find_param(const Json& given, const KeySpec& spec, const std::string& path, Problems& problems) {
  const Json* found = given.find(spec.name);
  for (const auto& alias : spec.aliases) {
    const Json* other = given.find(alias);
    if (!other) continue;
    if (found) {
      problems.error(join_path(path, alias),
                     "means the same as '" + spec.name + "', which is given too. Keep one of them.");
    }
    found = found ? found : other;
  }
  return found;
}

bool is_param(std::string_view key, const std::vector<KeySpec>& specs) {
  return std::any_of(specs.begin(), specs.end(), [&](const KeySpec& spec) {
    return spec.name == key || std::find(spec.aliases.begin(), spec.aliases.end(), key) != spec.aliases.end();
  });
}

class ParamsReader {
 public:
  ParamsReader(const ParamsPlace& place, Problems& problems, std::vector<ResolvedAuto>& autos)
      : place_(place), problems_(problems), autos_(autos) {}

  /// The value in force, or nothing when there is none.
  std::optional<Json> read(const Json& given, const KeySpec& spec) {
    const Json* value = find_param(given, spec, place_.path, problems_);
    const bool ordinary = std::find(spec.choices.begin(), spec.choices.end(), Json("auto")) != spec.choices.end();
    const bool automatic = value && is_auto(*value) && !ordinary;
    if (value && value->is_null() && !spec.nullable) value = nullptr;
    if (!value || automatic) return absent(spec, automatic);
    if (value->is_null()) return Json();
    const std::string where = join_path(place_.path, spec.name);
    Converted result = convert(*value, spec);
    if (!result.remark.empty()) problems_.warning(where, result.remark);
    if (!result.value) problems_.error(where, result.fault + without_warmup(spec, *value));
    return std::move(result.value);
  }

 private:
  /// Earlier releases of DeepSpeed took 0 for no warm-up; later ones divide by it, or refuse it.
  static std::string without_warmup(const KeySpec& spec, const Json& value) {
    const bool none = spec.name == "warmup_num_steps" && value == Json(0) && spec.minimum && *spec.minimum > 0;
    return none ? " For no warm-up write 1, or leave the scheduler out where it does nothing else." : "";
  }

  std::optional<Json> absent(const KeySpec& spec, bool automatic) {
    const std::string where = join_path(place_.path, spec.name);
    if (spec.required && automatic) {
      autos_.push_back({where, Json(), true});
      return std::nullopt;
    }
    if (spec.required) {
      problems_.error(where,
                      "is missing; it must be given" + (spec.summary.empty() ? "." : " (" + spec.summary + ")."));
      return std::nullopt;
    }
    if (automatic) autos_.push_back({where, spec.fallback.value_or(Json())});
    return spec.fallback;
  }

  const ParamsPlace& place_;
  Problems& problems_;
  std::vector<ResolvedAuto>& autos_;
};

}  // namespace

Json validate_params(const Json& given, const ParamsPlace& place, const std::vector<KeySpec>& specs, Problems& problems,
                     std::vector<UnknownKey>& unknown, std::vector<ResolvedAuto>& autos) {
  Json out = Json::object();
  std::vector<std::string> names;
  ParamsReader reader(place, problems, autos);
  for (const KeySpec& spec : specs) {
    names.push_back(spec.name);
    if (auto value = reader.read(given, spec)) out[spec.name] = std::move(*value);
  }
  for (const auto& [key, value] : given.as_object()) {
    if (is_comment(key) || is_param(key, specs)) continue;
    unknown.push_back({join_path(place.path, key), place.path, key, value, place.component, names});
  }
  return out;
}

void check_param_rules(const Json& values, const ParamsPlace& place, const std::vector<ParamRule>& rules,
                       Problems& problems, const Json* overrides) {
  for (const ParamRule& rule : rules) {
    const auto& names = rule.condition.names();
    const auto subject = overrides
                             ? std::find_if(names.begin(), names.end(),
                                            [&](const std::string& name) { return overrides->find(name) != nullptr; })
                             : names.begin();
    if (subject == names.end()) continue;
    const std::optional<std::string> breach = rule.breach(values);
    if (!breach) continue;
    const std::string path = join_path(place.path, *subject);
    if (rule.only_warns) {
      problems.warning(path, *breach);
    } else {
      problems.error(path, *breach);
    }
  }
}

}  // namespace capstan
