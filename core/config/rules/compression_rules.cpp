#include <string>

#include "core/config/rules/section_rules.hpp"
#include "core/schema/regular_expression.hpp"
#include "core/schema/value.hpp"
#include "core/text/places.hpp"

namespace capstan {
namespace {

constexpr const char* kCompression = "compression_training";
constexpr std::int64_t kMostBits = 32;  // of a weight

std::string shared(const std::string& method) {
  return std::string(kCompression) + "." + method + ".shared_parameters";
}
std::string groups(const std::string& method) { return std::string(kCompression) + "." + method + ".different_groups"; }

/// A value that is in the group or, with more weight, in the shared parameters.
std::int64_t integer(const Json& params, const char* key) {
  const Json* value = params.find(key);
  return value && value->is_integer() ? value->as_integer() : 0;
}

void check_modules(const Json& group, const std::string& path, Problems& problems) {
  const Json *modules = group.find("modules"), *related = group.find("related_modules");
  if (modules && modules->is_array()) {
    for (std::size_t i = 0; i < modules->size(); ++i) {
      const std::string& pattern = modules->as_array()[i].as_string();
      if (pattern == "*") continue;  // every module, as DeepSpeed's pages write it
      const std::string fault = expression_fault(pattern);
      if (!fault.empty()) problems.error(element_path(path + ".modules", i), fault);
    }
  }
  if (related && related->is_array() && related->size() != (modules ? modules->size() : 0)) {
    problems.error(path + ".related_modules",
                   "must have one entry for each of modules: " + std::to_string(modules ? modules->size() : 0) +
                       ", got " + std::to_string(related->size()) + ".");
  }
}

template <class Check>
void for_each_group(const Effective& values, const std::string& method, Check&& check) {
  const Json* all = values.find(groups(method));
  if (!all || !all->is_object()) return;
  for (const auto& [name, group] : all->as_object()) check(group, join_path(groups(method), name));
}

void check_method(const Effective& values, const std::string& method, Problems& problems) {
  const bool snip = values.text(shared(method) + ".method") == "snip_momentum";
  const Json* all = values.find(groups(method));
  if (values.flag(shared(method) + ".enabled") && !snip && (!all || all->size() == 0)) {
    problems.error(groups(method), "is missing; " + method + " is enabled and needs at least one group.");
  }
  for_each_group(values, method, [&](const Json& group, const std::string& path) {
    check_modules(group, path, problems);
    const Json* params = group.find("params");
    if (!params) return problems.error(path + ".params", "is missing; each group needs its values.");
    const Json* dense = params->find("dense_ratio");
    if (values.flag(shared(method) + ".enabled") && !snip && dense && dense->is_number() && dense->as_number() == 0) {
      problems.error(path + ".params.dense_ratio", "is 0, and nothing would be left. Give the share that stays.");
    }
  });
}

/// Row, head and channel pruning shrink the modules that take what they prune; the other methods leave all shapes
/// alone.
void note_related_modules(const Effective& values, Problems& problems) {
  for (const char* method : {"weight_quantization", "activation_quantization", "sparse_pruning"}) {
    if (!values.flag(shared(method) + ".enabled")) continue;
    for_each_group(values, method, [&](const Json& group, const std::string& path) {
      const Json* related = group.find("related_modules");
      if (!related || related->is_null()) return;
      problems.notice(path + ".related_modules", std::string("has no effect in ") + method +
                                                     ": only row, head and channel pruning shrink anything.");
    });
  }
}

void check_weight_group(const Effective& values, const Json& params, const std::string& path, Problems& problems) {
  const std::string common = shared("weight_quantization");
  const bool forward = values.flag(common + ".quantize_weight_in_forward");
  const std::int64_t start = integer(params, "start_bits"), target = integer(params, "target_bits");
  if (!forward && start > 0 && target > 0 && start < target) {
    problems.error(path + ".start_bits",
                   std::to_string(start) + " is below target_bits, " + std::to_string(target) + ".");
  }
  if (!forward && start > kMostBits) {
    problems.error(path + ".start_bits",
                   "must be at most " + std::to_string(kMostBits) + ", got " + std::to_string(start) + ".");
  }
  if (target > kMostBits) {
    problems.error(path + ".target_bits",
                   "must be at most " + std::to_string(kMostBits) + ", got " + std::to_string(target) + ".");
  }
  if (target == 1 || target == 2) {
    if (values.text(common + ".quantization_type") == "asymmetric") {
      problems.error(path + ".target_bits", std::to_string(target) + " bits need quantization_type \"symmetric\".");
    }
    if (values.text(common + ".rounding") == "stochastic") {
      problems.error(path + ".target_bits", std::to_string(target) + " bits need rounding \"nearest\".");
    }
    if (values.flag(common + ".quantizer_kernel")) {
      problems.error(path + ".target_bits",
                     "quantizer_kernel needs at least 3 bits, got " + std::to_string(target) + ".");
    }
  }
}

/// Says of keys of the update (MoQ) that a forward which rounds weights does not read them.
void note_idle_weight_keys(const Effective& values, Problems& problems) {
  const std::string common = shared("weight_quantization");
  if (!values.flag(common + ".enabled") || !values.flag(common + ".quantize_weight_in_forward")) return;
  const auto note = [&](const std::string& path, bool idle) {
    if (!idle) return;
    problems.notice(path,
                    "has no effect with quantize_weight_in_forward: weights are rounded to target_bits, to the "
                    "nearest, from schedule_offset on.");
  };
  note(common + ".rounding", values.text(common + ".rounding") == "stochastic");
  note(common + ".quantizer_kernel", values.flag(common + ".quantizer_kernel"));
  note(common + ".quantize_verbose", values.flag(common + ".quantize_verbose"));
  note(common + ".fp16_mixed_quantize.enabled", values.flag(common + ".fp16_mixed_quantize.enabled"));
  for_each_group(values, "weight_quantization", [&](const Json& group, const std::string& path) {
    const Json* params = group.find("params");
    if (!params) return;
    note(path + ".params.start_bits", integer(*params, "start_bits") != integer(*params, "target_bits"));
    note(path + ".params.quantization_period", integer(*params, "quantization_period") > 1);
  });
}

/// Quantising in the update (MoQ).
void check_update(const Effective& values, const std::string& common, Problems& problems) {
  if (!values.flag("fp16.enabled")) {
    problems.error(
        common + ".quantize_weight_in_forward",
        "false quantises weights in the update (MoQ), after which the model computes with them in float16: it "
        "needs fp16, which is not enabled. Enable it, or set the key to true.");
  }
  const std::string mixed = common + ".fp16_mixed_quantize.";
  const Json* ratio = values.find(mixed + "quantize_change_ratio");
  if (values.flag(mixed + "enabled") && ratio && ratio->is_number() && ratio->as_number() <= 0) {
    problems.error(mixed + "quantize_change_ratio",
                   "must be above 0, got " + shown(*ratio) + ": nothing would ever be quantised.");
  }
}

void check_weights(const Effective& values, Problems& problems) {
  const std::string common = shared("weight_quantization");
  if (values.flag(common + ".enabled") && !values.flag(common + ".quantize_weight_in_forward")) {
    check_update(values, common, problems);
  }
  note_idle_weight_keys(values, problems);
  for_each_group(values, "weight_quantization", [&](const Json& group, const std::string& path) {
    if (const Json* params = group.find("params")) check_weight_group(values, *params, path + ".params", problems);
  });
}

bool is_count(std::string_view text) {
  return !text.empty() && text.size() <= 6 && text[0] != '0' &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// NxM, channelx1, 1xchannel, or N:M with N below M
bool is_block_pattern(std::string_view text) {
  if (text == "channelx1" || text == "1xchannel") return true;
  const auto cut = text.find_first_of("x:");
  if (cut == std::string_view::npos) return false;
  const std::string_view left = text.substr(0, cut), right = text.substr(cut + 1);
  if (!is_count(left) || !is_count(right)) return false;
  return text[cut] == 'x' || std::stoi(std::string(left)) < std::stoi(std::string(right));
}

/// The share that 2:4 leaves at least, 0.5; 0 for patterns of blocks.
double least_dense(std::string_view pattern) {
  const auto cut = pattern.find(':');
  if (cut == std::string_view::npos || !is_block_pattern(pattern)) return 0;
  return 1 - std::stod(std::string(pattern.substr(0, cut))) / std::stod(std::string(pattern.substr(cut + 1)));
}

/// Says of keys of snip_momentum that the other methods do not read them.
void note_idle_sparse_keys(const Effective& values, Problems& problems) {
  const std::string common = shared("sparse_pruning");
  const std::string method = values.text(common + ".method");
  if (!values.flag(common + ".enabled") || method == "snip_momentum") return;
  const std::string why = "has no effect with method \"" + method + "\": ";
  const auto note = [&](const std::string& key, const std::string& instead) {
    if (values.given(common + "." + key)) problems.notice(common + "." + key, why + instead);
  };
  note("schedule_offset_end", "pruning begins with update schedule_offset, and does not end.");
  note("schedule_offset_stride", "l1 chooses weights once, and topk after every update.");
  note("block_pattern", "weights are pruned one by one.");
  note("dense_ratio", "the share that is kept is params.dense_ratio of each of different_groups.");
}

void check_excluded(const Json* excluded, const std::string& path, Problems& problems) {
  if (!excluded || !excluded->is_array()) return;
  for (std::size_t i = 0; i < excluded->size(); ++i) {
    const Json& pattern = excluded->as_array()[i];
    if (!pattern.is_string()) continue;
    const std::string fault = expression_fault(pattern.as_string());
    if (!fault.empty()) problems.error(element_path(path, i), fault);
  }
}

void check_sparse(const Effective& values, Problems& problems) {
  const std::string common = shared("sparse_pruning");
  note_idle_sparse_keys(values, problems);
  check_excluded(values.find(common + ".excluded_modules"), common + ".excluded_modules", problems);
  const Json* end = values.find(common + ".schedule_offset_end");
  const std::int64_t offset = values.integer(common + ".schedule_offset");
  if (end && end->is_integer() && end->as_integer() < offset) {
    problems.error(common + ".schedule_offset_end",
                   shown(*end) + " is below schedule_offset, " + std::to_string(offset) + ".");
  }
  const std::string pattern = values.text(common + ".block_pattern");
  if (!pattern.empty() && !is_block_pattern(pattern)) {
    problems.error(common + ".block_pattern",
                   "must be NxM, channelx1, 1xchannel, or N:M with N below M, such as \"4x1\" or \"2:4\", got \"" +
                       pattern + "\".");
  }
  const bool snip = values.flag(common + ".enabled") && values.text(common + ".method") == "snip_momentum";
  const Json* dense = values.find(common + ".dense_ratio");
  const double kept = dense && dense->is_number() ? dense->as_number() : 0.1;
  if (snip && kept < least_dense(pattern) - 1e-9) {
    problems.error(common + ".dense_ratio", shown(Json(kept)) + " would prune more than block_pattern \"" + pattern +
                                                "\" allows; keep at least " + shown(Json(least_dense(pattern))) + ".");
  }
}

void check_layer_reduction(const Effective& values, Problems& problems) {
  const std::string path = std::string(kCompression) + ".layer_reduction";
  const bool teacher_named = !values.text("capstan.teacher.path").empty();
  if (!values.flag(path + ".enabled")) {
    if (teacher_named) problems.notice("capstan.teacher.path", "has no effect without " + path + ".");
    return;
  }
  for (const char* key : {"keep_number_layer", "module_name_prefix", "teacher_layer"}) {
    if (!values.find(join_path(path, key)))
      problems.error(join_path(path, key), "is missing; layer reduction needs it.");
  }
  const char* const count = "compression_training.layer_reduction.keep_number_layer";
  const Json *teacher = values.find(path + ".teacher_layer"), *keep = values.find(count);
  if (teacher && keep && keep->is_integer() && static_cast<std::int64_t>(teacher->size()) != keep->as_integer()) {
    problems.error(count, shown(*keep) + " is not the number of entries of teacher_layer, " +
                              std::to_string(teacher->size()) + ".");
  }
  if (values.find(path + ".module_name_prefix") && values.text(path + ".module_name_prefix").empty())
    problems.error(path + ".module_name_prefix",
                   "must not be empty: it is the name before a layer's number, \"blocks\".");
}

void check_eigenvalue(const Effective& values, Problems& problems) {
  const std::string path = "quantize_training.eigenvalue";
  if (!values.flag(path + ".enabled")) return;
  const std::string common = shared("weight_quantization");
  if (!values.flag(common + ".enabled")) {
    problems.error(path + ".enabled",
                   "needs compression_training.weight_quantization, whose periods it scales; that is not enabled.");
  } else if (values.flag(common + ".quantize_weight_in_forward")) {
    problems.error(path + ".enabled", "needs weight quantisation in the update; quantize_weight_in_forward is true.");
  }
  if (values.given("sparse_attention") || values.given("capstan.attention")) {
    problems.error(
        path + ".enabled",
        "needs second derivatives, which sparse attention's kernels do not have. Leave sparse_attention out.");
  }
  const std::string dropped = "data_efficiency.data_routing.random_ltd.enabled";
  if (values.flag("data_efficiency.enabled") && values.flag("data_efficiency.data_routing.enabled") &&
      values.flag(dropped)) {
    problems.error(path + ".enabled",
                   "needs second derivatives, which random-LTD's gathering has none of. Switch " + dropped + " off.");
  }
  if (values.text(path + ".layer_name").empty()) problems.error(path + ".layer_name", "must not be empty.");
  if (values.integer(path + ".layer_num") == 0)
    problems.error(path + ".layer_num", "must be above 0: the number of blocks of the model.");
}

}  // namespace

void check_compression_rules(const Effective& values, Problems& problems) {
  for (const char* method : {"weight_quantization", "activation_quantization", "sparse_pruning", "row_pruning",
                             "head_pruning", "channel_pruning"}) {
    check_method(values, method, problems);
  }
  note_related_modules(values, problems);
  check_weights(values, problems);
  check_sparse(values, problems);
  check_layer_reduction(values, problems);
  const std::string heads = shared("head_pruning");
  if (values.flag(heads + ".enabled") && !values.find(heads + ".num_heads"))
    problems.error(heads + ".num_heads", "is missing; head pruning needs it.");
  check_eigenvalue(values, problems);
}

}  // namespace capstan
