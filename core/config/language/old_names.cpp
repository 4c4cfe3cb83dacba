#include "core/config/language/old_names.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "core/config/language/language.hpp"
#include "core/schema/value.hpp"
#include "core/text/places.hpp"

namespace capstan {
namespace {

Json* find_path(Json& document, std::string_view path) {
  Json* at = &document;
  while (at && !path.empty()) {
    const auto dot = path.find('.');
    at = at->find(path.substr(0, dot));
    path = dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
  }
  return at;
}

std::pair<std::string, std::string> split_last(std::string_view path) {
  const auto dot = path.rfind('.');
  if (dot == std::string_view::npos) return {"", std::string(path)};
  return {std::string(path.substr(0, dot)), std::string(path.substr(dot + 1))};
}

/// Today's name, and what the value becomes.
enum class Effect { kRename, kOffload, kNone };

struct OldName {
  const char* old_path;
  const char* new_path;
  Effect effect;
  bool silent;      // an alternative spelling rather than an old one
  bool may_repeat;  // both may be given when they agree
};

constexpr OldName kOldNames[] = {
    {"train_step_batch_size", "train_micro_batch_size_per_gpu", Effect::kRename, false, false},
    {"zero_optimization.cpu_offload", "zero_optimization.offload_optimizer", Effect::kOffload, false, false},
    {"zero_optimization.cpu_offload_param", "zero_optimization.offload_param", Effect::kOffload, false, false},
    {"zero_optimization.cpu_offload_params", "zero_optimization.offload_param", Effect::kOffload, false, false},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save",
     "zero_optimization.stage3_gather_16bit_weights_on_model_save", Effect::kRename, false, false},
    {"aio.thread_count", "aio.intra_op_parallelism", Effect::kRename, true, true},
    {"elasticity.prefer_large_batch", "elasticity.prefer_larger_batch", Effect::kRename, true, true},
    {"autotuning.start_step", "autotuning.start_profile_step", Effect::kRename, false, false},
    {"autotuning.end_step", "autotuning.end_profile_step", Effect::kRename, false, false},
    {"flops_profiler.start_step", "flops_profiler.profile_step", Effect::kRename, false, false},
    {"eigenvalue", "quantize_training.eigenvalue", Effect::kRename, false, false},
    {"checkpoint.tag_validation_mode", "checkpoint.tag_validation", Effect::kRename, false, true},
    {"gradient_accumulation_dtype", "data_types.grad_accum_dtype", Effect::kRename, false, true},
    {"data_types.gradient_accumulation_dtype", "data_types.grad_accum_dtype", Effect::kRename, false, true},
    // The key's first name, of DeepSpeed's pull request 945; 1039 gave it today's. The test that came with the first
    // shows the meaning: with false a parameter without a gradient fails the step, with true it does not.
    {"zero_optimization.find_unused_parameters", "zero_optimization.ignore_unused_parameters", Effect::kRename, false,
     true},
    {"tensor_parallel.tensor_parallel", "tensor_parallel.tp", Effect::kRename, true, false},
    {"tensor_parallel.replace_with_kernel_inject", "tensor_parallel.kernel_inject", Effect::kRename, true, false},
};

/// Keys of earlier releases that nothing reads any more.
struct Idle {
  const char* path;
  const char* reason;
};

constexpr const char* kNoLossScaling = "has no effect: bf16 has no loss scaling. Remove it.";
constexpr Idle kIdle[] = {
    {"fp16.opt_level", "has no effect in fp16; apex's level is amp.opt_level. Remove it."},
    {"bf16.loss_scale", kNoLossScaling},
    {"bf16.initial_scale_power", kNoLossScaling},
    {"bf16.loss_scale_window", kNoLossScaling},
    {"bf16.hysteresis", kNoLossScaling},
    {"bf16.consecutive_hysteresis", kNoLossScaling},
    {"bf16.min_loss_scale", kNoLossScaling},
    {"autotuning.num_gpus", "has no effect: devices come from the launcher. Remove it."},
    {"autotuning.num_nodes", "has no effect: nodes come from the launcher. Remove it."},
    {"flops_profiler.end_step", "has no effect: one step is profiled, profile_step. Remove it."},
    {"compile.disable", "has no effect: the switch is compile.deepcompile. Remove it."},
    {"allgather_size",
     "has no effect unless zero_optimization is true; write allgather_bucket_size in zero_optimization instead."},
    {"cuda_visible_devices", "has no effect: set the environment variable CUDA_VISIBLE_DEVICES. Remove it."},
    {"transformer_cuda_ext", "has no effect: it configured a kernel of an example program of 2020. Remove it."},
    {"zero_optimization.cpu_offload_use_pin_memory",
     "has no effect: write pin_memory inside offload_optimizer and offload_param."},
};

/// The keys of the first MoQ sections, which compression_training replaced.
constexpr std::array<std::string_view, 11> kMoqKeys = {"enabled",
                                                       "quantize_weight_in_forward",
                                                       "quantize_bits",
                                                       "quantize_type",
                                                       "quantize_schedule",
                                                       "quantize_groups",
                                                       "fp16_mixed_quantize",
                                                       "quantize_algo",
                                                       "quantize_verbose",
                                                       "quantizer_kernel",
                                                       "quantize_eigenvalue"};

class Replacer {
 public:
  Replacer(Json& document, Problems& problems) : document_(document), problems_(problems) {}

  std::vector<Replacement> run() {
    boolean_zero();
    offload_switches();
    rename_section("bfloat16", "bf16");
    for (const OldName& name : kOldNames) rename(name);
    stage3_prefixes();
    fp32_allreduce();
    disable_allgather();
    tag_validation();
    one_cycle();
    for (const Idle& idle : kIdle) drop_idle_key(idle);
    reject_old_moq_keys();
    return std::move(out_);
  }

 private:
  void remove(std::string_view path) {
    const auto [parent, key] = split_last(path);
    find_path(document_, parent)->erase(key);
  }

  void put(std::string_view path, Json value, std::size_t offset) {
    value.set_offset(offset);
    Json* at = &document_;
    const auto [parent, key] = split_last(path);
    if (!parent.empty()) {
      at = &document_[parent];
      if (at->is_null()) {
        *at = Json::object();
        at->set_offset(offset);
      }
    }
    if (at->is_object()) (*at)[key] = std::move(value);
  }

  /// The value of a path that is neither absent nor null; null counts as absent and is removed.
  std::optional<Json> given(std::string_view path) {
    const Json* found = find_path(document_, path);
    if (!found) return std::nullopt;
    if (found->is_null()) {
      remove(path);
      return std::nullopt;
    }
    return *found;
  }

  std::optional<bool> as_boolean(const std::string& path, const Json& value) {
    KeySpec spec;
    spec.type = KeySpec::Type::kBoolean;
    const Converted converted = convert(value, spec);
    if (!converted.value) {
      problems_.error(path, converted.fault);
      return std::nullopt;
    }
    return converted.value->as_bool();
  }

  void report_both_given(const std::string& old_path, const std::string& new_path) {
    problems_.error(old_path, "is the old spelling of " + new_path + ", which is given too. Keep only the new one.");
  }

  void boolean_zero() {
    const auto zero = given("zero_optimization");
    if (!zero || zero->is_object() || !zero->is_bool()) return;
    Json section = Json::object();
    section["stage"] = zero->as_bool() ? 1 : 0;
    if (zero->as_bool()) {
      Json bucket(500000000);
      if (const auto size = given("allgather_size")) {
        bucket = *size;
        remove("allgather_size");
      }
      section["allgather_bucket_size"] = bucket;
    }
    problems_.warning("zero_optimization", "old spelling of " + std::string(zero->as_bool() ? "true" : "false") +
                                               "; write " + section.dump() + ".");
    for (auto& [key, value] : section.as_object()) value.set_offset(zero->offset().value_or(0));
    put("zero_optimization", section, zero->offset().value_or(0));
    out_.push_back({"zero_optimization", "zero_optimization", section});
  }

  /// "offload_param": false means null; true says too little.
  void offload_switches() {
    for (const std::string path : {"zero_optimization.offload_param", "zero_optimization.offload_optimizer"}) {
      const auto value = given(path);
      if (!value || !value->is_bool()) continue;
      if (value->as_bool()) problems_.error(path, "must be an object such as {\"device\": \"cpu\"}, got true.");
      remove(path);
    }
  }

  void rename_section(const std::string& old_path, const std::string& new_path) {
    const auto value = given(old_path);
    if (!value) return;
    remove(old_path);
    if (given(new_path)) {
      problems_.warning(old_path,
                        "is not used: it is the old spelling of " + new_path + ", which is given too. Remove it.");
      out_.push_back({old_path, "", std::nullopt});
      return;
    }
    problems_.warning(old_path, "old spelling; write \"" + new_path + "\".");
    put(new_path, *value, value->offset().value_or(0));
    out_.push_back({old_path, new_path, std::nullopt});
  }

  void rename(const OldName& name) {
    const std::string old_path = name.old_path, new_path = name.new_path;
    const auto value = given(old_path);
    if (!value) return;
    const std::size_t offset = value->offset().value_or(0);
    const auto today = given(new_path);
    if (today && !(name.may_repeat && *today == *value)) {
      if (name.may_repeat) {
        problems_.error(old_path, "means the same as " + new_path + ", which is given too with another value: " +
                                      shown(*value) + " and " + shown(*today) + ". Keep one of them.");
      } else {
        report_both_given(old_path, new_path);
      }
      remove(old_path);
      return;
    }
    std::optional<Json> made;
    if (name.effect == Effect::kOffload) {
      const auto on = as_boolean(old_path, *value);
      remove(old_path);
      if (!on) return;
      if (!*on) return dropped(old_path, new_path);
      made = Json::object();
      (*made)["device"] = "cpu";
      (*made)["device"].set_offset(offset);
    } else {
      remove(old_path);
    }
    put(new_path, made.value_or(*value), offset);
    if (name.silent) return;
    problems_.warning(old_path, advice(old_path, new_path, made.value_or(*value)));
    out_.push_back({old_path, new_path, made});
  }

  static std::string advice(const std::string& old_path, const std::string& new_path, const Json& value) {
    const auto [section, key] = split_last(new_path);
    const std::string place = split_last(old_path).first == section ? "" : " in " + section;
    if (value.is_object() && value.size() > 1) return "old place; move the section to " + new_path + ".";
    return "old spelling; write \"" + key + "\": " + (value.is_object() ? value.dump() : shown(value)) + place + ".";
  }

  void dropped(const std::string& old_path, const std::string& new_path) {
    problems_.warning(old_path, "old spelling; leave it out, which means no " + split_last(new_path).second + ".");
    out_.push_back({old_path, "", std::nullopt});
  }

  /// Each stage3_ key may be written without its prefix.
  void stage3_prefixes() {
    constexpr std::string_view kPrefix = "stage3_";
    for (const auto& member : language().member("zero_optimization")->members) {
      const std::string& name = member->spec.name;
      if (!name.starts_with(kPrefix)) continue;
      const std::string short_path = "zero_optimization." + name.substr(kPrefix.size());
      const auto value = given(short_path);
      if (!value) continue;
      remove(short_path);
      const std::string long_path = "zero_optimization." + name;
      if (given(long_path)) {
        problems_.error(short_path, "means the same as " + long_path + ", which is given too. Keep one of them.");
      } else {
        put(long_path, *value, value->offset().value_or(0));
      }
    }
  }

  void fp32_allreduce() {
    const std::string path = "fp32_allreduce";
    const auto value = given(path);
    if (!value) return;
    const auto on = as_boolean(path, *value);
    remove(path);
    if (!on) return;
    if (!*on) {
      problems_.warning(path, "old key, without effect when false; leave it out.");
      out_.push_back({path, "", std::nullopt});
      return;
    }
    const auto type = given("communication_data_type");
    if (type && !(type->is_string() && (type->as_string() == "fp32" || type->as_string() == "FP32"))) {
      problems_.error(path, "true means communication_data_type \"fp32\", but that key says " + shown(*type) +
                                ". Keep only communication_data_type.");
      return;
    }
    problems_.warning(path, "old spelling; write \"communication_data_type\": \"fp32\".");
    put("communication_data_type", Json("fp32"), value->offset().value_or(0));
    out_.push_back({path, type ? "" : "communication_data_type", Json("fp32")});
  }

  void disable_allgather() {
    const std::string path = "disable_allgather", today = "zero_optimization.allgather_partitions";
    const auto value = given(path);
    if (!value) return;
    const auto off = as_boolean(path, *value);
    remove(path);
    if (!off) return;
    const auto partitions = given(today);
    if (partitions && partitions->is_bool() && partitions->as_bool() == *off) return report_both_given(path, today);
    problems_.warning(path, std::string("old spelling; write \"allgather_partitions\": ") + (*off ? "false" : "true") +
                                " in zero_optimization.");
    if (!partitions) put(today, Json(!*off), value->offset().value_or(0));
    out_.push_back({path, partitions ? "" : today, Json(!*off)});
  }

  /// The attribute that DeepSpeed makes of tag_validation: false is "Ignore", true the default, "Warn".
  void tag_validation() {
    const std::string path = "checkpoint.tag_validation_enabled", today = "checkpoint.tag_validation";
    const auto value = given(path);
    if (!value) return;
    const auto on = as_boolean(path, *value);
    remove(path);
    if (!on) return;
    if (given(today)) {
      if (!*on) return report_both_given(path, today);
      problems_.warning(path, "says nothing beside tag_validation. Remove it.");
      out_.push_back({path, "", std::nullopt});
      return;
    }
    const Json mode(*on ? "Warn" : "Ignore");
    problems_.warning(path, "old spelling; write \"tag_validation\": " + shown(mode) + ".");
    put(today, mode, value->offset().value_or(0));
    out_.push_back({path, today, mode});
  }

  void one_cycle() {
    Json* type = find_path(document_, "scheduler.type");
    if (!type || !type->is_string() || (type->as_string() != "1Cycle" && type->as_string() != "1cycle")) return;
    const auto offset = type->offset();
    *type = Json("OneCycle");
    if (offset) type->set_offset(*offset);
  }

  void drop_idle_key(const Idle& idle) {
    if (!given(idle.path)) return;
    problems_.warning(idle.path, idle.reason);
    remove(idle.path);
    out_.push_back({idle.path, "", std::nullopt});
  }

  /// quantize_training of 2021: its keys are refused with the block that says the same today.
  void reject_old_moq_keys() {
    Json* written = find_path(document_, "quantize_training");
    if (!written || !written->is_object()) return;
    // DeepSpeed's page of 2021 wrote "quantize-algo".
    for (auto& [key, value] : written->as_object()) {
      std::string name = key;
      std::replace(name.begin(), name.end(), '-', '_');
      if (std::find(kMoqKeys.begin(), kMoqKeys.end(), name) != kMoqKeys.end()) key = name;
    }
    const std::optional<Json> section = *written;
    bool found = false;
    for (const std::string_view key : kMoqKeys) {
      found |= section->find(key) != nullptr;
      find_path(document_, "quantize_training")->erase(key);
    }
    if (!found) return;
    problems_.error(
        "quantize_training",
        "these keys of 2021 are no longer read: without them training would run unquantised. Write instead " +
            moq_block(*section).dump() + ".");
  }

  bool switched_on(const char* path) const {
    const Json* enabled = find_path(document_, path);
    return enabled && *enabled == Json(true);
  }

  static Json number_of(const Json& section, const char* object, const char* key, std::int64_t otherwise) {
    const Json* inner = section.find(object);
    const Json* value = inner ? inner->find(key) : nullptr;
    return value ? *value : Json(otherwise);
  }

  Json moq_block(const Json& section) const {
    const auto copy = [&](const Json& from, const char* old_key, Json& to, const char* new_key) {
      if (const Json* value = from.find(old_key)) to[new_key] = *value;
    };
    Json shared = Json::object();
    shared["enabled"] = section.find("enabled") ? *section.find("enabled") : Json(true);
    copy(section, "quantizer_kernel", shared, "quantizer_kernel");
    if (const Json* schedule = section.find("quantize_schedule"))
      copy(*schedule, "schedule_offset", shared, "schedule_offset");
    copy(section, "quantize_groups", shared, "quantize_groups");
    copy(section, "quantize_verbose", shared, "quantize_verbose");
    copy(section, "quantize_type", shared, "quantization_type");
    if (const Json* algorithm = section.find("quantize_algo")) {
      copy(*algorithm, "q_type", shared, "quantization_type");
      copy(*algorithm, "rounding", shared, "rounding");
    }
    copy(section, "quantize_weight_in_forward", shared, "quantize_weight_in_forward");
    // Behind the optimizer weights are quantised under fp16 alone.
    const Json* in_forward = shared.find("quantize_weight_in_forward");
    const bool needs_fp16 = *shared.find("enabled") == Json(true) && (!in_forward || *in_forward != Json(true)) &&
                            !switched_on("fp16.enabled");
    const bool other_type = switched_on("bf16.enabled") || switched_on("amp.enabled");
    if (needs_fp16 && other_type) shared["quantize_weight_in_forward"] = true;
    copy(section, "fp16_mixed_quantize", shared, "fp16_mixed_quantize");
    Json params = Json::object();
    params["start_bits"] = number_of(section, "quantize_bits", "start_bits", 16);
    params["target_bits"] = number_of(section, "quantize_bits", "target_bits", 8);
    params["quantization_period"] = number_of(section, "quantize_schedule", "quantize_period", 100);
    Json group = Json::object();
    group["params"] = params;
    Json groups = Json::object();
    groups["wq1"] = group;
    Json method = Json::object();
    method["shared_parameters"] = shared;
    method["different_groups"] = groups;
    Json compression = Json::object();
    compression["weight_quantization"] = method;
    Json block = Json::object();
    block["compression_training"] = compression;
    if (needs_fp16 && !other_type) {
      block["fp16"] = Json::object();
      block["fp16"]["enabled"] = true;
    }
    return block;
  }

  Json& document_;
  Problems& problems_;
  std::vector<Replacement> out_;
};

}  // namespace

std::vector<Replacement> replace_old_names(Json& document, Problems& problems) {
  return Replacer(document, problems).run();
}

std::vector<OldSpelling> old_spellings_in(const std::string& section) {
  std::vector<OldSpelling> out;
  for (const OldName& old : kOldNames) {
    const auto [place, name] = split_last(old.old_path);
    if (place == section) out.push_back({name, old.new_path, old.effect == Effect::kRename});
  }
  for (const Idle& idle : kIdle) {
    const auto [place, name] = split_last(idle.path);
    if (place == section) out.push_back({name, "", false});
  }
  if (section.empty()) {
    out.push_back({"bfloat16", "bf16", true});
    out.push_back({"fp32_allreduce", "prescale_gradients", true});  // any boolean key has its type
    out.push_back({"disable_allgather", "zero_optimization.allgather_partitions", true});
  }
  if (section == "checkpoint") out.push_back({"tag_validation_enabled", "checkpoint.load_universal", true});
  if (section != "zero_optimization") return out;
  for (const auto& member : language().member(section)->members) {
    if (member->spec.name.starts_with("stage3_")) out.push_back({member->spec.name.substr(7), member->path, true});
  }
  return out;
}

std::string todays_spelling(const std::string& old_path, const Json& value) {
  const auto [section, old_key] = split_last(old_path);
  if (old_path == "bfloat16") return "Did you mean 'bf16'?";
  for (const OldName& name : kOldNames) {
    if (name.old_path != old_path) continue;
    const auto [place, key] = split_last(name.new_path);
    if (name.effect == Effect::kRename) return "Did you mean '" + (place == section ? key : name.new_path) + "'?";
    if (value == Json(false)) return "Leave it out, which means no " + key + ".";
    return "Write \"" + key + "\": {\"device\": \"cpu\"}.";
  }
  return "Did you mean '" + old_key + "'?";
}

}  // namespace capstan
