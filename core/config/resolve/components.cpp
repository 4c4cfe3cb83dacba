#include "core/config/resolve/components.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <utility>

#include "core/config/language/params.hpp"
#include "core/config/resolve/acting_component.hpp"
#include "core/config/resolve/device.hpp"
#include "core/config/resolve/offload_sections.hpp"
#include "core/config/resolve/switched_sections.hpp"
#include "core/schema/regular_expression.hpp"
#include "core/schema/value.hpp"
#include "core/text/places.hpp"

namespace capstan {
namespace {

/// Names that other programs and libraries have for components of the kind.
struct ForeignType {
  std::string_view kind;
  std::string_view type;  // in lower case
  const char* hint;
};
constexpr const char* kFused = " Write 'Adam' or 'AdamW': the update is one pass on every device.";
constexpr const char* kCosine = " A cosine is 'WarmupCosineLR', with total_num_steps and cos_min_ratio.";
constexpr const char* kLinear = " A linear decay is 'WarmupDecayLR', with total_num_steps.";
constexpr const char* kLbfgs =
    " L-BFGS evaluates the loss several times in a step, which step() after one backward cannot.";
constexpr const char* kMup =
    " mup scales rates by widths, which a configuration does not hold. In Python give initialize() the optimizer that "
    "mup makes, a torch.optim one with a rate for each width; else write the plain type, and in "
    "capstan.parameter_groups the lr of each width.";
constexpr ForeignType kForeignTypes[] = {
    {"optimizer", "muadam", kMup},
    {"optimizer", "muadamw", kMup},
    {"optimizer", "musgd", kMup},
    {"optimizer", "fusedadam", kFused},
    {"optimizer", "deepspeedcpuadam", kFused},
    {"optimizer", "cpuadam", kFused},
    {"optimizer", "cpu_adam", kFused},
    {"optimizer", "adamw_torch", kFused},
    {"optimizer", "adamw_hf", kFused},
    {"optimizer", "fusedlamb", " Write 'Lamb'."},
    {"optimizer", "lbfgs", kLbfgs},
    {"scheduler", "cosine", kCosine},
    {"scheduler", "cosinelr", kCosine},
    {"scheduler", "cosineannealinglr", kCosine},
    {"scheduler", "cosineannealing", kCosine},
    {"scheduler", "cosineannealingwarmrestarts", kCosine},
    {"scheduler", "linear", kLinear},
    {"scheduler", "linearlr", kLinear},
    {"scheduler", "constant", " A constant rate needs no scheduler; 'WarmupLR' holds it after a warm-up."},
    {"scheduler", "constantlr", " A constant rate needs no scheduler; 'WarmupLR' holds it after a warm-up."},
};

/// What the author of a foreign name may have meant, or nothing.
std::string foreign_type_hint(std::string_view kind, std::string_view type) {
  std::string lower(type);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const ForeignType& foreign : kForeignTypes) {
    if (foreign.kind == kind && foreign.type == lower) return foreign.hint;
  }
  return "";
}

const std::string kCpu = "cpu";

/// DeepSpeed's names of tuners, which are those of the plugins that come with Capstan.
constexpr std::array<std::string_view, 3> kBundledTuners = {"gridsearch", "random", "model_based"};

/// Parameters of schedules that set the rate itself, so that the optimizer's own is not used.
constexpr std::array<const char*, 3> kPeakRates = {"warmup_max_lr", "cycle_max_lr", "lr_range_test_min_lr"};

Json params_of(const Json* section) {
  const Json* params = section ? section->find("params") : nullptr;
  return params && params->is_object() ? *params : Json::object();
}

/// Whether all paths of data are indices of indexed files.
bool names_indices(const Effective& values) {
  for (const char* key : {"capstan.data.path", "capstan.data.eval_path"}) {
    const Json* paths = values.find(key);
    if (paths == nullptr || !paths->is_array()) continue;
    for (const Json& path : paths->as_array()) {
      if (!path.is_string() || !path.as_string().ends_with(".idx")) return false;
    }
  }
  return true;
}

bool is_auto(const Json* value) { return value && value->is_string() && value->as_string() == "auto"; }

}  // namespace

void ComponentChooser::missing(const std::string& where, const std::string& kind, const std::string& type) {
  missing(where, kind, type, kind == "optimizer" ? device_ : kCpu);
}

void ComponentChooser::missing(const std::string& where, const std::string& kind, const std::string& type,
                               const std::string& device) {
  constexpr std::size_t kLongest = 100;
  const std::string named = type.size() <= kLongest ? type : type.substr(0, kLongest) + "...";
  std::string text = plugins_.missing_reason(kind, named, device);
  if (const auto available = text.find(" Available: "); available != std::string::npos)
    text.insert(available, foreign_type_hint(kind, type));
  text.insert(text.find("\n  looked in"), or_on_cpu(device));
  problems_.error(where, text);
}

/// The parameters in force of a component, after everything that its manifest says of them.
Json ComponentChooser::checked_params(const Json& given, const std::string& path, const ComponentManifest& component) {
  const ParamsPlace place{path, component.type};
  Json params = validate_params(given, place, component.params, problems_, validated_.unknown, validated_.autos);
  check_param_rules(params, place, component.rules, problems_);
  std::set<std::string> checked;
  for (const StateSpec& state : component.state) {
    const Json* patterns = params.find(state.when_names);
    if (!patterns || !checked.insert(state.when_names).second) continue;
    for (std::size_t i = 0; i < (patterns->is_array() ? patterns->size() : 1); ++i) {
      const Json& pattern = patterns->is_array() ? patterns->as_array()[i] : *patterns;
      const std::string fault = pattern.is_string() ? expression_fault(pattern.as_string()) : "";
      const std::string where = join_path(path, state.when_names);
      if (!fault.empty()) problems_.error(patterns->is_array() ? element_path(where, i) : where, fault);
    }
  }
  return params;
}

/// The device whose memory an optimizer works on: the run's, or the CPU, where its states are offloaded or where it has
/// no kernel for the run's.
std::string ComponentChooser::optimizer_device(const std::string& type) {
  if (device_ == kCpu || !plugins_.find("optimizer", type)) return device_;
  // Where parameters are in host memory, the masters are as well.
  const bool parameters = values_.integer("zero_optimization.stage") == 3 &&
                          (offloads(values_, kOffloadParameters) || values_.find("capstan.offload.parameters"));
  if (parameters || offloads(values_, kOffloadOptimizer) || values_.find("capstan.offload.optimizer")) return kCpu;
  if (plugins_.find("optimizer", type, device_)) return device_;
  problems_.notice("optimizer.type",
                   "no plugin provides an optimizer '" + type + "' for " + device_ +
                       ", so that it updates in host memory: gradients are copied there, and parameters "
                       "back, once a step.");
  return kCpu;
}

std::optional<ComponentChoice> ComponentChooser::choose_at(const Json& entry, const std::string& section,
                                                           const std::string& kind, const Json& params_given) {
  const Json* type = entry.find("type");
  if (!type || !type->is_string()) return std::nullopt;  // reported already
  const std::string where = join_path(section, "type");
  // An optimizer works on the memory of its device; what else there is works through LibTorch, or on no tensors.
  const std::string device = kind == "optimizer" ? optimizer_device(type->as_string()) : kCpu;
  const ComponentRef found = plugins_.find(kind, type->as_string(), device);
  if (!found) {
    missing(where, kind, type->as_string());
    return std::nullopt;
  }
  ComponentChoice choice{kind, found.component->type, Json::object(), where, device};
  choice.params = checked_params(params_given, join_path(section, "params"), *found.component);
  for (const auto& [name, value] : choice.params.as_object()) {
    const std::string path = join_path(join_path(section, "params"), name);
    const Json* given = params_given.find(name);
    validated_.origins[path] = given && !given->is_null() && !is_auto(given) ? "file" : "default";
  }
  return choice;
}

std::optional<ComponentChoice> ComponentChooser::choose(const std::string& section, const std::string& kind,
                                                        Json params_given) {
  const Json* entry = values_.find(section);
  if (!entry) return std::nullopt;
  auto choice = choose_at(*entry, section, kind, params_given);
  if (!choice) return std::nullopt;
  const std::string origin = validated_.origins[join_path(section, "type")];
  values_.derive(join_path(section, "type"), choice->type);
  values_.derive(join_path(section, "params"), choice->params);
  validated_.origins[join_path(section, "type")] = origin;
  validated_.origins[join_path(section, "params")] = origin;
  return choice;
}

std::optional<ComponentChoice> ComponentChooser::optimizer() {
  Json params = params_of(values_.find("optimizer"));
  return choose("optimizer", "optimizer", std::move(params));
}

std::optional<ComponentChoice> ComponentChooser::scheduler(const std::optional<ComponentChoice>& optimizer) {
  Json params = params_of(values_.find("scheduler"));
  const Json* rate = optimizer ? optimizer->params.find("lr") : nullptr;
  const Json* steps = values_.find("capstan.run.steps");
  const auto fill = [&](const char* name, const Json* value, const char* reason = "") {
    if (!value || value->is_null() || !is_auto(params.find(name))) return;
    params[name] = *value;
    validated_.autos.push_back({join_path("scheduler.params", name), *value, false, reason});
  };
  fill("warmup_max_lr", rate);
  fill("total_num_steps", steps);
  // As transformers fills it in, whose warmup_steps are 0; a default of 1,000 would outlast most runs.
  const Json least = least_warmup();
  fill("warmup_num_steps", &least, "no warm-up, as transformers fills it in");
  auto choice = choose("scheduler", "scheduler", params);
  if (choice && optimizer) schedule_rate(*choice, *optimizer);
  return choice;
}

/// The fewest updates of a warm-up that the schedule takes; null where it has no warm-up of whole updates.
Json ComponentChooser::least_warmup() const {
  const ComponentRef found = plugins_.find("scheduler", values_.text("scheduler.type"));
  if (!found) return {};
  for (const KeySpec& spec : found.component->params) {
    if (spec.name != "warmup_num_steps" || spec.type != KeySpec::Type::kInteger) continue;
    return static_cast<std::int64_t>(spec.minimum.value_or(0)) + (spec.exclusive_minimum ? 1 : 0);
  }
  return {};
}

/// Says so when the schedule's rate replaces another one that the file gives the optimizer.
void ComponentChooser::schedule_rate(const ComponentChoice& scheduler, const ComponentChoice& optimizer) {
  const Json* rate = optimizer.params.find("lr");
  if (!rate || !values_.given("optimizer.params.lr")) return;
  for (const char* name : kPeakRates) {
    const std::string path = join_path("scheduler.params", name);
    const Json* peak = scheduler.params.find(name);
    if (!peak || !values_.given(path) || *peak == *rate || is_auto(params_of(document_.find("scheduler")).find(name)))
      continue;
    problems_.warning(
        path, "lr " + shown(*peak) + " from " + path + "; optimizer.params.lr " + shown(*rate) + " is not used.");
  }
}

std::optional<ComponentChoice> ComponentChooser::model() {
  Json params = params_of(values_.find("capstan.model"));
  return choose("capstan.model", "model", std::move(params));
}

std::optional<ComponentChoice> ComponentChooser::dataset() {
  const std::string section = "capstan.data.dataset", format = values_.text("capstan.data.format");
  if (const Json* entry = values_.find(section)) {
    if (format != "auto") {
      problems_.error("capstan.data.format", "'" + format + "' has no effect beside " + section +
                                                 ", which says how data is read. Take one of the two away.");
    }
    return choose(section, "dataset", params_of(entry));
  }
  if (!values_.given("capstan.data.path") && !values_.given("capstan.data.eval_path")) return std::nullopt;
  Json entry = Json::object(), params = Json::object();
  const bool indexed = format == "indexed" || (format == "auto" && names_indices(values_));
  entry["type"] = indexed ? "indexed" : "tokens";
  if (!indexed) params["format"] = format;
  // Nobody has named it: where it is not installed, only those who open the data need know.
  if (!plugins_.find("dataset", entry.at("type").as_string())) {
    return ComponentChoice{"dataset", entry.at("type").as_string(), params, section};
  }
  return choose_at(entry, section, "dataset", params);
}

std::optional<ComponentChoice> ComponentChooser::sampler() {
  return choose("capstan.data.sampler", "sampler", params_of(values_.find("capstan.data.sampler")));
}

std::optional<ComponentChoice> ComponentChooser::pacing() {
  return choose("capstan.data.pacing", "pacing", params_of(values_.find("capstan.data.pacing")));
}

std::optional<ComponentChoice> ComponentChooser::tuner() {
  const std::string own = "capstan.tuner", key = "autotuning.tuner_type";
  if (values_.find(own)) {
    if (values_.given(key)) {
      problems_.error(own + ".type", "chooses a tuner, and so does " + key + ". Take one of the two away.");
      return std::nullopt;
    }
    return choose(own, "tuner", params_of(values_.find(own)));
  }
  const std::string type = values_.text(key);
  const ComponentRef found = plugins_.find("tuner", type);
  if (found) {
    return ComponentChoice{"tuner", found.component->type, checked_params(Json::object(), key, *found.component), key};
  }
  // What comes with Capstan may be left out of a build: only those who tune need know.
  if (std::find(kBundledTuners.begin(), kBundledTuners.end(), type) == kBundledTuners.end() && !type.empty()) {
    missing(key, "tuner", type);
  }
  return std::nullopt;
}

std::optional<ComponentChoice> ComponentChooser::optimizer_offload() {
  return store("capstan.offload.optimizer", "zero_optimization.offload_optimizer");
}

std::optional<ComponentChoice> ComponentChooser::parameter_offload() {
  const std::string own = "capstan.offload.parameters";
  // Below stage 3 every process holds all parameters, and the section has no effect.
  if (!values_.find(own) && values_.integer("zero_optimization.stage", 3) < 3) return std::nullopt;
  const std::string section = "zero_optimization.offload_param", where = section + ".device";
  // Parameters go from a device to host memory by the same way as to any store.
  if (device_ == kCpu || values_.find(own) || values_.text(where) != "cpu") return store(own, section);
  const ComponentRef found = plugins_.find("offload", "cpu");
  if (found) return ComponentChoice{"offload", found.component->type, Json::object(), where};
  missing(where, "offload", "cpu");
  return std::nullopt;
}

std::optional<ComponentChoice> ComponentChooser::activation_offload() {
  const std::string section = "capstan.offload.activations";
  return choose(section, "offload", params_of(values_.find(section)));
}

/// What `own` names; failing that, the component of DeepSpeed's device "nvme", with the keys of the section and of aio
/// that its manifest lists.
std::optional<ComponentChoice> ComponentChooser::store(const std::string& own, const std::string& section) {
  if (values_.find(own)) return choose(own, "offload", params_of(values_.find(own)));
  const std::string where = section + ".device";
  if (values_.text(where) != "nvme") return std::nullopt;
  const ComponentRef found = plugins_.find("offload", "nvme");
  if (!found) {
    missing(where, "offload", "nvme");
    return std::nullopt;
  }
  Json known = Json::object();
  std::set<std::string> of_aio;
  for (const std::string& from : {std::string("aio"), section}) {
    const Json* keys = values_.find(from);
    if (!keys || !keys->is_object()) continue;
    for (const auto& [key, value] : keys->as_object()) {
      if (!has_param(*found.component, key)) continue;
      known[key] = value;
      values_.consume(join_path(from, key));
      if (from == "aio") of_aio.insert(key);
    }
  }
  const std::size_t before = problems_.all().size();
  ComponentChoice choice{"offload", found.component->type, Json::object(), where};
  choice.params = checked_params(known, section, *found.component);
  say_of_aio(of_aio, section, before);
  return choice;
}

/// A component that a key of a section of the language names: it gets those of the section's keys that its manifest
/// lists.
ComponentChoice ComponentChooser::section_part(const ComponentManifest& component, const std::string& section,
                                               const std::string& where) {
  Json known = Json::object();
  const Json* keys = values_.find(section);
  for (const auto& [key, value] : keys->as_object()) {
    if (!has_param(component, key)) continue;
    known[key] = value;
    values_.consume(join_path(section, key));
  }
  ComponentChoice choice{component.kind, component.type, Json::object(), where};
  choice.params = checked_params(known, section, component);
  return choice;
}

std::optional<ComponentChoice> ComponentChooser::attention() {
  const std::string own = "capstan.attention", section = "sparse_attention", where = "sparse_attention.mode";
  const Json* entry = values_.find(own);
  const Json* keys = values_.find(section);
  const bool by_mode = keys != nullptr && keys->is_object();
  if (entry != nullptr && entry->find("type") != nullptr && !entry->find("type")->is_null()) {
    if (by_mode) {
      problems_.error(own + ".type", "chooses a layout, and so does " + where + ". Take one of the two away.");
      return std::nullopt;
    }
    return choose(own, "attention", params_of(entry));
  }
  if (!by_mode) {
    if (entry != nullptr && entry->is_object()) {
      problems_.error(own, "chooses no layout: give its 'type', or the section " + section + ".");
    }
    return std::nullopt;
  }
  if (entry != nullptr && !params_of(entry).as_object().empty()) {
    problems_.error(own + ".params", "has no effect without capstan.attention.type. The layout of " + where +
                                         " takes its arguments from " + section + ".");
  }
  const std::string mode = values_.text(where);
  if (mode.empty()) return std::nullopt;  // reported already
  const ComponentRef found = plugins_.find("attention", mode);
  if (!found) {
    missing(where, "attention", mode);
    return std::nullopt;
  }
  return section_part(*found.component, section, where);
}

std::optional<ComponentChoice> ComponentChooser::attention_kernel() {
  const std::string where = "capstan.attention.kernel";
  const Json* named = values_.find(where);
  const std::string type = named != nullptr && named->is_string() ? named->as_string() : "block_sparse";
  const ComponentRef found = plugins_.find("attention", type, device_);
  if (!found) {
    missing(where, "attention", type, device_);
    return std::nullopt;
  }
  return ComponentChoice{"attention", found.component->type, checked_params(Json::object(), where, *found.component),
                         where, device_};
}

/// What was said, from `first` on, of keys of the section that stand in aio, stands there: once, though the stores of
/// two sections take them.
void ComponentChooser::say_of_aio(const std::set<std::string>& keys, const std::string& section, std::size_t first) {
  std::vector<Problem>& all = problems_.all();
  for (std::size_t i = all.size(); i-- > first;) {
    const auto key = std::find_if(keys.begin(), keys.end(),
                                  [&](const std::string& one) { return all[i].path == join_path(section, one); });
    if (key == keys.end()) continue;
    all[i].path = join_path("aio", *key);
    const bool said =
        std::any_of(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first),
                    [&](const Problem& one) { return one.path == all[i].path && one.message == all[i].message; });
    if (said) all.erase(all.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

std::vector<ParameterGroupRule> ComponentChooser::parameter_groups(const std::optional<ComponentChoice>& optimizer) {
  std::vector<ParameterGroupRule> rules;
  const Json* list = values_.find("capstan.parameter_groups");
  if (!list || !list->is_array()) return rules;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const std::string where = element_path("capstan.parameter_groups", i);
    const Json& entry = list->as_array()[i];
    ParameterGroupRule rule;
    if (const Json* match = entry.find("match"); match && match->is_array()) {
      for (std::size_t j = 0; j < match->size(); ++j) {
        const std::string& pattern = match->as_array()[j].as_string();
        const std::string fault = expression_fault(pattern);
        if (!fault.empty()) problems_.error(element_path(where + ".match", j), fault);
        rule.name_patterns.push_back(pattern);
      }
    }
    if (const Json* dims = entry.find("dims_below"); dims && dims->is_integer()) rule.dims_below = dims->as_integer();
    if (rule.name_patterns.empty() && !rule.dims_below) {
      problems_.error(where, "selects nothing: give 'match', 'dims_below' or both.");
    }
    const Json given = params_of(&entry);
    const ComponentRef found =
        optimizer ? plugins_.find("optimizer", optimizer->type, optimizer->device) : ComponentRef{};
    if (found) {
      std::vector<KeySpec> specs = found.component->params;
      for (KeySpec& spec : specs) {
        spec.fallback.reset();
        spec.required = false;
      }
      const Json params = validate_params(given, {where + ".params", optimizer->type}, specs, problems_,
                                          validated_.unknown, validated_.autos);
      Json values = optimizer->params;
      for (const auto& [name, value] : params.as_object()) {
        rule.overrides[name] = value;
        values[name] = value;
      }
      check_param_rules(values, {where + ".params", optimizer->type}, found.component->rules, problems_, &params);
    } else if (!values_.find("optimizer")) {
      problems_.error(where, "gives arguments to an optimizer, but there is no optimizer section.");
    }
    rules.push_back(std::move(rule));
  }
  return rules;
}

void ComponentChooser::list(const std::string& path, const std::string& kind, std::vector<ComponentChoice>& out) {
  const Json* entries = values_.find(path);
  if (!entries || !entries->is_array()) return;
  for (std::size_t i = 0; i < entries->size(); ++i) {
    const Json& entry = entries->as_array()[i];
    if (auto choice = choose_at(entry, element_path(path, i), kind, params_of(&entry)))
      out.push_back(std::move(*choice));
  }
}

}  // namespace capstan
