#include "core/config/language/key_advice.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "core/config/language/language.hpp"
#include "core/config/language/old_names.hpp"
#include "core/schema/value.hpp"
#include "core/text/nearest.hpp"
#include "core/text/places.hpp"

namespace capstan {
namespace {

/// Slips that are seen in public files and that nearness alone does not explain.
struct KnownSlip {
  const char* path;
  const char* text;
  bool changes_training;
};

constexpr const char* kSaving =
    "unknown key. When and where to save is the program's business: here capstan.run.save_dir and "
    "capstan.run.save_every.";
constexpr const char* kBetas = "unknown key. Write both in one list, such as \"betas\": [0.9, 0.999].";
constexpr const char* kPrecision =
    "unknown key. Write \"bf16\": {\"enabled\": true}, or \"fp16\": {\"enabled\": true}.";
constexpr const char* kRunLength = "unknown key. How long to train is the program's business: here capstan.run.steps.";
constexpr const char* kOnePass =
    "unknown key: it chooses how torch computes; here every update is one pass. Remove it.";
constexpr const char* kNoPipelines = "unknown key: pipeline parallelism is not in this release. Remove it.";
constexpr const char* kNoCompiler = "unknown key: this release compiles no models. Remove the section 'compile'.";
constexpr const char* kTotalSteps = "unknown key. Did you mean 'total_num_steps'?";
constexpr KnownSlip kSlips[] = {
    {"gradient_accumulation", "unknown key. Did you mean 'gradient_accumulation_steps'?", true},
    {"initial_loss_scale_power", "unknown key. Did you mean 'fp16.initial_scale_power'?", true},
    {"fp16.initial_loss_scale_power", "unknown key. Did you mean 'initial_scale_power'?", true},
    {"fp16.loss_scale_power", "unknown key. Did you mean 'initial_scale_power'?", true},
    {"fp16.dynamic_loss_scale", "unknown key. A \"loss_scale\" of 0 is dynamic, any other is fixed.", true},
    {"bf16.auto_cast", "unknown key: it casts inputs under fp16 alone. Remove it.", false},
    {"fp16.fp16_scale_tolerance", "unknown key, an option of fairseq. The nearest here is 'hysteresis'.", true},
    {"fp16.min_scale", "unknown key. Did you mean 'min_loss_scale'?", true},
    {"bf16.check_overflow", "unknown key. Did you mean 'check_grad_overflow'?", true},
    {"scheduler.params.cos_min_lr",
     "unknown key. Did you mean 'cos_min_ratio'? It is a fraction of the optimizer's lr, not a rate.", true},
    {"zero_optimization.cpu_offload_pin_memory",
     "unknown key. Write pin_memory inside offload_optimizer and offload_param.", true},
    {"zero_optimization.disk_offload",
     "unknown key. In place of it and of cpu_offload write \"offload_optimizer\": {\"device\": \"nvme\"}, or "
     "offload_param so, with nvme_path beside it.",
     true},
    {"zero_optimization.max_group_size", "unknown key, of the Gaudi fork; there is no equivalent here.", true},
    {"zero_optimization.native_reduce_scatter",
     "unknown key, of a development branch. The nearest here is 'reduce_scatter'.", true},
    {"zero_allow_comm_data_type_fp32",
     "unknown key, of the Gaudi fork. The nearest here is \"communication_data_type\": \"fp32\".", true},
    {"allreduce_partitions", "unknown key. Did you mean 'zero_optimization.allgather_partitions'?", true},
    {"allreduce_bucket_size", "unknown key. Did you mean 'zero_optimization.reduce_bucket_size'?", true},
    {"zero_optimization.allreduce_bucket_size", "unknown key. Did you mean 'reduce_bucket_size'?", true},
    {"disable_fused_adam", "unknown key. Write \"torch_adam\": true in optimizer.params.", true},
    {"checkpoint.save_checkpoint_steps", kSaving, false},
    {"checkpoint.checkpoint_dir", kSaving, false},
    {"checkpoint.save_dir", kSaving, false},
    {"checkpoint.save_optimizer_states", kSaving, false},
    {"checkpoint.save_fp16_master_weights", kSaving, false},
    {"comms_config", "unknown key, the name of a class. Did you mean 'comms_logger'?", false},
    {"monitor_config",
     "unknown key, the name of a class. Monitors stand at the top level: csv_monitor, tensorboard, wandb, comet.",
     false},
    {"logging", "unknown key. steps_per_print, wall_clock_breakdown and dump_state stand at the top level.", false},
    {"int8", "unknown key: there is no such section. Quantisation is under compression_training.", true},
    {"quantize_training.eigenvalue.model_name", "unknown key. Did you mean 'layer_name'?", true},
    {"pipeline.pipeline_parallel_size", kNoPipelines, true},
    {"pipeline.schedule", kNoPipelines, false},
    {"pipeline.partition_method", kNoPipelines, true},
    {"optimizer_offload", "unknown key. Did you mean 'zero_optimization.offload_optimizer'?", true},
    {"activation_checkpointing.enabled",
     "unknown key: this section has no switch but its flags. \"capstan\": {\"recompute\": {}} switches it on.", false},
    {"gradient_checkpointing", "unknown key, an argument of another trainer. Write \"capstan\": {\"recompute\": {}}.",
     false},
    {"tensor_parallel.enabled",
     "unknown key: tensor parallelism is not in this release. Remove the section 'tensor_parallel'.", true},
    {"wandb.entity", "unknown key. Did you mean 'team'?", false},
    {"optimizer.params.learning_rate", "unknown key. Did you mean 'lr'?", true},
    {"optimizer.params.epsilon", "unknown key. Did you mean 'eps'?", true},
    {"optimizer.params.wd", "unknown key. Did you mean 'weight_decay'?", true},
    {"optimizer.params.beta1", kBetas, true},
    {"optimizer.params.beta2", kBetas, true},
    {"optimizer.params.beta_1", kBetas, true},
    {"optimizer.params.beta_2", kBetas, true},
    {"optimizer.params.adam_beta1", kBetas, true},
    {"optimizer.params.adam_beta2", kBetas, true},
    {"scheduler.params.warmup_steps", "unknown key. Did you mean 'warmup_num_steps'?", true},
    {"scheduler.params.num_warmup_steps", "unknown key. Did you mean 'warmup_num_steps'?", true},
    {"scheduler.params.total_steps", kTotalSteps, true},
    {"scheduler.params.max_steps", kTotalSteps, true},
    {"scheduler.params.num_training_steps", kTotalSteps, true},
    {"compile.enabled", kNoCompiler, true},
    {"compile.backend", kNoCompiler, true},
    {"tensorboard.log_dir", "unknown key. Did you mean 'output_path'?", false},
    {"csv_monitor.log_dir", "unknown key. Did you mean 'output_path'?", false},
    {"zero_optimization.overlap_communication", "unknown key. Did you mean 'overlap_comm'?", true},
    {"zero", "unknown key. Did you mean 'zero_optimization'?", true},
    {"precision", kPrecision, true},
    {"mixed_precision", kPrecision, true},
    {"seed", "unknown key. Did you mean 'capstan.run.seed'?", false},
    {"max_steps", kRunLength, false},
    {"num_epochs", kRunLength, false},
    {"num_train_epochs", kRunLength, false},
    {"optimizer.params.fused", kOnePass, false},
    {"optimizer.params.foreach", kOnePass, false},
    {"param_offload", "unknown key. Did you mean 'zero_optimization.offload_param'?", true},
};

/// Sections that report on training without changing it.
constexpr std::array<std::string_view, 12> kReporting = {"tensorboard",
                                                         "wandb",
                                                         "csv_monitor",
                                                         "comet",
                                                         "comms_logger",
                                                         "flops_profiler",
                                                         "timers",
                                                         "steps_per_print",
                                                         "wall_clock_breakdown",
                                                         "memory_breakdown",
                                                         "dump_state",
                                                         "log_level"};

bool reports_only(std::string_view path) {
  return std::find(kReporting.begin(), kReporting.end(), path.substr(0, path.find('.'))) != kReporting.end();
}

/// Every name of the language with the paths that it has.
class Names {
 public:
  explicit Names(const PluginIndex& plugins) {
    add(language());
    for (const auto& plugin : plugins.plugins()) {
      for (const auto& component : plugin.manifest.components) add(component);
    }
  }

  const std::vector<std::string>& members(const std::string& section) const {
    static const std::vector<std::string> none;
    const auto found = members_.find(section);
    return found == members_.end() ? none : found->second;
  }
  const std::vector<std::string>& names() const { return names_; }
  /// The names that have a path which `wanted` accepts.
  template <class Wanted>
  std::vector<std::string> names(const Wanted& wanted) const {
    std::vector<std::string> out;
    for (const std::string& name : names_) {
      const auto& all = paths_.at(name);
      if (std::any_of(all.begin(), all.end(), wanted)) out.push_back(name);
    }
    return out;
  }
  /// The types whose parameters include the name.
  std::vector<std::string> types_with(const std::string& section, const std::string& name) const {
    const auto found = types_.find(join_path(section, name));
    return found == types_.end() ? std::vector<std::string>() : found->second;
  }
  const std::vector<std::string>& paths(const std::string& name) const { return paths_.at(name); }

 private:
  void add(const SchemaNode& node) {
    for (const auto& member : node.members) {
      add(node.path, member->spec.name);
      add(*member);
    }
    if (node.any_member) add(*node.any_member);
    if (node.element) add(*node.element);
  }

  void add(const ComponentManifest& component) {
    const bool at_top = component.kind == "optimizer" || component.kind == "scheduler";
    const std::string section = !component.section.empty() ? component.section
                                : at_top                   ? component.kind + ".params"
                                                           : "";
    if (section.empty()) return;
    for (const KeySpec& spec : component.params) {
      add(section, spec.name);
      // A type may have a component for each device.
      std::vector<std::string>& types = types_[join_path(section, spec.name)];
      if (std::find(types.begin(), types.end(), component.type) == types.end()) types.push_back(component.type);
    }
  }

  void add(const std::string& section, const std::string& name) {
    const std::string path = join_path(section, name);
    if (!known_.insert(path).second) return;
    members_[section].push_back(name);
    if (paths_[name].empty()) names_.push_back(name);
    paths_[name].push_back(path);
  }

  std::set<std::string> known_;
  std::map<std::string, std::vector<std::string>> members_, paths_, types_;
  std::vector<std::string> names_;
};

/// The path in the language of a section as it stands in a document: names of the user's choice become <name>.
std::string schema_path(const std::string& section) {
  if (section.empty()) return "";
  const SchemaNode* node = find_key(section);
  return node ? node->path : section;
}

/// True when a name has the words of the key, two at least, in the key's order.
bool has_words_of(std::string_view name, std::string_view key) {
  const auto next_word = [](std::string_view& rest) {
    const auto end = std::min(rest.find_first_of("-_"), rest.size());
    const std::string_view word = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return word;
  };
  if (key.find_first_of("-_") == std::string_view::npos) return false;
  std::string_view wanted = next_word(key);
  while (!name.empty()) {
    if (next_word(name) == wanted) {
      if (key.empty()) return true;
      wanted = next_word(key);
    }
  }
  return false;
}

class Advisor {
 public:
  Advisor(const Json& document, const PluginIndex& plugins)
      : document_(document), names_(plugins), searched_(plugins.searched_text()) {}

  KeyAdvice find(const UnknownKey& key) const {
    if (key.path == "max_grad_norm" || key.path == "optimizer.params.max_grad_norm") return clipping(key);
    if (key.path == "fp16.fp16") return switch_of_fp16(key);
    for (const KnownSlip& slip : kSlips) {
      if (key.path == slip.path) return {slip.text, slip.changes_training, true};
    }
    if (auto inside = held_top_level_keys(key)) return *inside;
    if (key.key.find(':') != std::string::npos) return {colon(key), true, true};
    if (names_settings(key.path) && !key.value.is_bool()) {
      return {key.value.is_string()
                  ? "unknown key. Give the file that it names, " + shown(key.value) + ", instead of this one."
                  : "unknown key. What it holds belongs at the top level of this file.",
              true, true};
    }
    return nearest(key);
  }

 private:
  KeyAdvice clipping(const UnknownKey& key) const {
    const Json* today = document_.find("gradient_clipping");
    if (today && *today == key.value) return said_already("gradient_clipping", key.value);
    return {"unknown key. Write \"gradient_clipping\": " + shown(key.value) + " at the top level" +
                (today ? ", where " + shown(*today) + " stands now." : "."),
            true, true};
  }

  /// GPT-NeoX writes the switch of fp16 twice.
  KeyAdvice switch_of_fp16(const UnknownKey& key) const {
    const Json* section = document_.find("fp16");
    const Json* enabled = section ? section->find("enabled") : nullptr;
    if (enabled && *enabled == key.value) return said_already("enabled", key.value);
    return {"unknown key. The switch of this section is 'enabled'.", true, true};
  }

  static KeyAdvice said_already(const std::string& name, const Json& value) {
    KeyAdvice advice{"unknown key. " + name + " says the same (" + shown(value) + ") already: remove this key.", false,
                     true};
    advice.repeats = true;
    return advice;
  }

  /// A section of a name of the user's own around keys that stand at the top level.
  std::optional<KeyAdvice> held_top_level_keys(const UnknownKey& key) const {
    if (!key.section.empty() || !key.meant.empty() || !key.value.is_object() || names_settings(key.key)) {
      return std::nullopt;
    }
    std::string names;
    bool changes = false;
    for (const auto& [name, value] : key.value.as_object()) {
      if (!language().member(name)) continue;
      names += (names.empty() ? "" : ", ") + name;
      changes |= !reports_only(name);
    }
    if (names.empty()) return std::nullopt;
    return KeyAdvice{"unknown key. Of what it holds, these keys stand at the top level: " + names + ".", changes, true};
  }

  static std::string colon(const UnknownKey& key) {
    const auto cut = key.key.find(':');
    return "unknown key. 'section:key' is notation for nesting: write {\"" + key.key.substr(0, cut) + "\": {\"" +
           key.key.substr(cut + 1) + "\": " + shown(key.value) + "}}.";
  }

  /// The sibling that was misspelt, else the same name elsewhere, else a near name in a section that is in use.
  KeyAdvice nearest(const UnknownKey& key) const {
    const bool parameter = !key.component.empty();
    const std::string section = schema_path(key.section);
    const auto& siblings = parameter ? key.parameters : names_.members(section);
    const auto sibling = key.meant.empty() ? nearest_name(key.key, siblings) : key.meant;
    if (auto old = parameter ? std::nullopt : old_spelling(key, section, sibling)) return *old;
    if (sibling && (!key.meant.empty() || name_distance(key.key, *sibling) <= 1)) return meant(key, {*sibling});
    const auto same = nearest_name(key.key, names_.names());
    if (same && name_distance(key.key, *same) == 0) {
      if (auto found = elsewhere(key, *same)) return *found;
    }
    if (const auto joined = with_its_section(key); !parameter && joined) return *joined;
    if (sibling) return meant(key, {*sibling});
    if (const auto longer = continued(key.key, siblings)) return meant(key, {*longer});
    if (const auto alike = of_the_same_words(key.key, siblings); !alike.empty()) return meant(key, alike);
    if (!parameter) {
      const auto near = nearest_name(key.key, names_.names([&](const std::string& path) { return in_use(path); }));
      if (near && near_enough(key.key, *near)) {
        if (auto found = elsewhere(key, *near)) return *found;
      }
    }
    return nothing_near(key, siblings);
  }

  /// checkpoint_tag_validation, wherever it stands, is checkpoint.tag_validation.
  std::optional<KeyAdvice> with_its_section(const UnknownKey& key) const {
    for (const auto& section : language().members) {
      const std::string prefix = section->spec.name + "_";
      if (!key.key.starts_with(prefix) || (!key.section.empty() && key.section != section->spec.name)) continue;
      const std::string name = key.key.substr(prefix.size());
      if (!section->member(name) || section->member(name) == section->any_member.get()) continue;
      return meant(key, {key.section.empty() ? join_path(section->spec.name, name) : name});
    }
    return std::nullopt;
  }

  /// What an earlier release's name that is nearer than every name of today says today.
  static std::optional<KeyAdvice> old_spelling(const UnknownKey& key, const std::string& section,
                                               const std::optional<std::string>& sibling) {
    std::vector<std::string> names;
    for (const OldSpelling& old : old_spellings_in(section)) {
      if (!old.new_path.empty()) names.push_back(old.name);
    }
    const auto old = nearest_name(key.key, names);
    if (!old || (sibling && name_distance(key.key, *sibling) <= name_distance(key.key, *old))) return std::nullopt;
    return KeyAdvice{"unknown key. " + todays_spelling(join_path(section, *old), key.value), !reports_only(key.path),
                     true};
  }

  enum class Use { kAbsent, kOff, kOn };

  /// Whether the section of a path stands in the document, with nothing around the path switched off.
  Use use_of(std::string_view path) const {
    const Json* at = &document_;
    for (auto dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.')) {
      at = at->find(path.substr(0, dot));
      if (!at || at->is_null()) return Use::kAbsent;
      const Json* enabled = at->find("enabled");
      if (enabled && *enabled == Json(false)) return Use::kOff;
      path.remove_prefix(dot + 1);
    }
    return Use::kOn;
  }
  bool in_use(std::string_view path) const { return use_of(path) == Use::kOn; }

  /// True when a key that was written in `section` may have been meant for another place. A single word, such as
  /// "device", names many things: it is looked for above and below its section alone. A section that the file lacks
  /// counts where no other section has a key of that name.
  bool may_be_meant(const std::string& path, const std::string& name, const std::string& section) const {
    const Use use = use_of(path);
    if (use == Use::kOff) return false;
    if (name.find_first_of("-_") != std::string::npos) return use == Use::kOn || names_.paths(name).size() == 1;
    const auto dot = path.rfind('.');
    const std::string around = dot == std::string::npos ? "" : path.substr(0, dot);
    const auto within = [](const std::string& inner, const std::string& outer) {
      return outer.empty() ||
             (inner.starts_with(outer) && (inner.size() == outer.size() || inner[outer.size()] == '.'));
    };
    return use == Use::kOn && (within(around, section) || within(section, around));
  }

  /// Up to three siblings that have all words of the key, in its order: micro_batch_per_gpu in
  /// train_micro_batch_size_per_gpu.
  static std::vector<std::string> of_the_same_words(std::string_view key, const std::vector<std::string>& siblings) {
    constexpr std::size_t kMost = 3;
    std::vector<std::string> alike;
    for (const auto& sibling : siblings) {
      if (has_words_of(sibling, key)) alike.push_back(sibling);
    }
    if (alike.size() > kMost) alike.clear();
    return alike;
  }

  /// Across the whole language chance resemblances are common: one letter in five at most.
  static bool near_enough(const std::string& key, const std::string& name) {
    return name_distance(key, name) * 5 <= key.size();
  }

  KeyAdvice nothing_near(const UnknownKey& key, const std::vector<std::string>& siblings) const {
    constexpr std::size_t kMost = 16;
    // A monitor, an observer or a compression is switched on by a section of its plugin's own.
    if (key.section.empty() && key.value.find("enabled"))
      return {
          "unknown key. If it is the section of a monitor, an observer or a compression, its plugin is not installed "
          "where it was looked for; if it is an option of another program, move it there or begin it with '_'." +
          searched_};
    if (key.section.empty())
      return {"unknown key. If it is an option of another program, move it there or begin it with '_'."};
    if (siblings.empty()) return {"unknown key."};
    std::string text =
        key.component.empty() ? "unknown key. This section has: " : "unknown key. " + key.component + " has: ";
    for (std::size_t i = 0; i < siblings.size() && i < kMost; ++i) text += (i == 0 ? "" : ", ") + siblings[i];
    return {text + (siblings.size() > kMost ? ", .." : "."), false, false, true};
  }

  /// The only sibling that goes on where the key stops at the end of a word: warmup_max -> warmup_max_lr.
  static std::optional<std::string> continued(const std::string& key, const std::vector<std::string>& siblings) {
    std::optional<std::string> only;
    for (const auto& sibling : siblings) {
      if (key.size() < 4 || !sibling.starts_with(key + "_")) continue;
      if (only) return std::nullopt;
      only = sibling;
    }
    return only;
  }

  static KeyAdvice meant(const UnknownKey& key, const std::vector<std::string>& names) {
    std::string text;
    for (const auto& name : names) text += (text.empty() ? "'" : " or '") + name + "'";
    return {"unknown key. Did you mean " + text + "?", !reports_only(join_path(key.section, names.front())), true};
  }

  /// The paths of a name that may have been meant, first those nearest to where the key stands.
  std::vector<std::string> places_of(const std::string& name, const UnknownKey& key) const {
    std::vector<std::string> paths = names_.paths(name);
    std::erase_if(paths, [&](const auto& path) { return path == key.path || !may_be_meant(path, name, key.section); });
    const auto shared = [&](const std::string& path) {
      return std::mismatch(path.begin(), path.end(), key.section.begin(), key.section.end()).first - path.begin();
    };
    std::stable_sort(paths.begin(), paths.end(), [&](const auto& a, const auto& b) { return shared(a) > shared(b); });
    return paths;
  }

  std::optional<KeyAdvice> elsewhere(const UnknownKey& key, const std::string& name) const {
    constexpr std::size_t kMostPlaces = 3;
    if (const auto types = names_.types_with(key.section, name); !key.component.empty() && !types.empty()) {
      return KeyAdvice{"unknown key: " + unlike(key.component, types), true, true};
    }
    std::string text;
    bool changes = false;
    std::size_t listed = 0;
    for (const auto& path : places_of(name, key)) {
      if (listed == kMostPlaces) break;
      text += (listed++ == 0 ? "'" : ", '") + path + (path == name ? "' at the top level" : "'");
      changes |= !reports_only(path);
    }
    if (text.empty()) return std::nullopt;
    return KeyAdvice{"unknown key. Did you mean " + text + "?", changes, true};
  }

  /// "Lion has no such parameter, unlike SGD, RMSprop."
  static std::string unlike(const std::string& component, std::vector<std::string> types) {
    const bool hidden = std::erase(types, component) > 0;
    if (types.empty()) {
      return "the " + component + " that is in use has no such parameter, unlike one of that name in another plugin, " +
             "which comes later in the search path. 'capstan plugins list' shows both.";
    }
    std::string text = component + (hidden ? ", as it is in use," : "") + " has no such parameter, unlike ";
    for (const std::string& type : types) text += (&type == &types.front() ? "" : ", ") + type;
    return text + ".";
  }

  const Json& document_;
  Names names_;
  std::string searched_;  // the folders of plugins
};

}  // namespace

bool names_settings(std::string_view key) {
  constexpr std::array<std::string_view, 4> kKeys = {"deepspeed", "deepspeed_config", "deepspeed_config_file",
                                                     "ds_config"};
  return std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end();
}

std::vector<KeyAdvice> advise(const std::vector<UnknownKey>& keys, const Json& document, const PluginIndex& plugins) {
  const Advisor advisor(document, plugins);
  std::vector<KeyAdvice> out;
  for (const UnknownKey& key : keys) out.push_back(advisor.find(key));
  return out;
}

}  // namespace capstan
