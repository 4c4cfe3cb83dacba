#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/language/language.hpp"
#include "core/config/resolve/acting_component.hpp"
#include "core/config/rules/rules.hpp"
#include "core/config/rules/run_keys.hpp"
#include "core/config/rules/section_rules.hpp"
#include "core/schema/value.hpp"
#include "core/text/nearest.hpp"
#include "core/text/places.hpp"

namespace capstan {
namespace {

constexpr const char* kStage = "zero_optimization.stage";
/// What report_idle_offload_keys() speaks of.
constexpr std::array<std::string_view, 3> kOffload = {"zero_optimization.offload_optimizer",
                                                      "zero_optimization.offload_param", "aio"};
constexpr const char* kUnread = "is checked, but nothing in this installation acts on it.";

/// Walks the keys that were given a value of their own, and says of each that changes nothing why it does not.
class IdleKeys {
 public:
  /// `away`: parameters are offloaded, so that stage 3 is stage 3 with one process too.
  IdleKeys(const Effective& values, bool alone, bool away, const PluginIndex& plugins, Problems& problems)
      : values_(values), alone_(alone), away_(away), plugins_(plugins), problems_(problems) {}

  void report() {
    visit(language());
    const std::int64_t stage = values_.integer(kStage);
    if (values_.integer(kStage, 3) < 3 && offloads(values_, kOffloadParameters))
      add(alone_ && stage > 0 ? zero_alone_ : below_stage3_, kOffloadParameters);
    if (alone_ && stage > 0 && !away_) {
      problems_.notice(kStage, "stage " + std::to_string(stage) +
                                   " with one process is stage 0: that process holds everything." +
                                   (zero_alone_.empty() ? "" : " Without effect then: " + zero_alone_ + "."));
    } else if (!zero_alone_.empty()) {
      problems_.notice("zero_optimization", "without effect with one process: " + zero_alone_ + ".");
    }
    if (!below_stage3_.empty()) {
      problems_.notice("zero_optimization",
                       "keys of stage 3 have no effect at stage " + std::to_string(stage) + ": " + below_stage3_ + ".");
    }
  }

 private:
  void visit(const SchemaNode& section) {
    for (const auto& member : section.members) {
      if (!values_.given(member->path)) continue;
      if (std::find(kOffload.begin(), kOffload.end(), member->path) != kOffload.end()) continue;
      const bool leaf = member->members.empty();
      if (leaf ? !differs(*member, values_) : switched_off(*member)) continue;
      if (!leaf && is_accounted_for(*member) && !is_conditional(*member) && !member->has(kNoEffect)) {
        visit(*member);
      } else if (!refused(member->path)) {
        judge(*member);
      }
    }
  }

  /// True when an error stands at the key or below it, which says more than a notice.
  bool refused(const std::string& path) const {
    return std::any_of(problems_.all().begin(), problems_.all().end(), [&](const Problem& problem) {
      return problem.severity == Problem::Severity::kError && problem.path.starts_with(path) &&
             (problem.path.size() == path.size() || problem.path[path.size()] == '.');
    });
  }

  /// True when there is a word on the key already, such as what its "auto" is.
  bool is_named(const std::string& path) const {
    return std::any_of(problems_.all().begin(), problems_.all().end(),
                       [&](const Problem& problem) { return problem.path == path; });
  }

  /// A section that its own switch holds off. A switch that was forgotten is worth a word.
  bool switched_off(const SchemaNode& section) {
    if (values_.text(section.path + ".device") == "none") return true;
    const std::string path = section.path + ".enabled";
    const Json* enabled = values_.find(path);
    if (!enabled || !enabled->is_bool() || enabled->as_bool()) return false;
    if (!values_.given(path) && !is_named(path)) {
      problems_.notice(section.path, "is off, for want of a switch. Add \"enabled\": true to switch it on, or false.");
    }
    return true;
  }

  bool is_read(const SchemaNode& node) const { return !acting_component(node, node.path, plugins_).empty(); }

  /// True when the table says of the key, or of one below it, what acts on it or why nothing needs to.
  bool is_accounted_for(const SchemaNode& node) const {
    return is_read(node) || node.has(kNoEffect) || (node.any_member && is_read(*node.any_member)) ||
           std::any_of(node.members.begin(), node.members.end(),
                       [&](const auto& member) { return is_accounted_for(*member); });
  }

  /// True when the key acts under conditions that this run does not meet.
  bool is_conditional(const SchemaNode& node) const {
    if (alone_ && node.has(kSeveral)) return true;
    return node.has(kStage3) && (values_.integer(kStage) < 3 || (alone_ && !away_));
  }

  /// Says why the key does nothing, if so. `node` is a key, or a section whose keys are judged together.
  void judge(const SchemaNode& node) {
    const bool of_zero = node.path.starts_with("zero_optimization.");
    const bool reason = node.has(kNoEffect);
    if (of_zero && alone_ && values_.integer(kStage) > 0 && !node.has(kOptional) && (reason || is_conditional(node))) {
      add(zero_alone_, node.path);
    } else if (reason) {
      problems_.notice(node.path, std::string("has no effect here: ") + node.key->reader + ".");
    } else if (!is_accounted_for(node)) {
      problems_.notice(node.path, kUnread);
    } else if (is_conditional(node)) {
      if (!of_zero) return problems_.notice(node.path, "has no effect with one process.");
      add(alone_ ? zero_alone_ : below_stage3_, node.path);
    }
  }

  static void add(std::string& list, std::string_view path) {
    path.remove_prefix(path.find('.') + 1);
    list += (list.empty() ? "" : ", ") + std::string(path);
  }

  const Effective& values_;
  bool alone_, away_;
  const PluginIndex& plugins_;
  Problems& problems_;
  std::string zero_alone_;    // keys of zero_optimization that one process leaves idle
  std::string below_stage3_;  // keys of stage 3 while the stage is lower
};

/// The key has no effect in this run, where it was given and `idle`.
void note(const Effective& values, const char* key, bool idle, const std::string& text, Problems& problems) {
  if (idle && values.given(key)) problems.notice(key, text);
}

/// Keys of zero_optimization whose effect depends on other keys, whatever the number of processes.
void zero_keys(const Effective& values, const Config& config, Problems& problems) {
  const std::int64_t stage = values.integer(kStage);
  const std::string at_stage = "has no effect at stage " + std::to_string(stage);
  const char* const unused = "zero_optimization.ignore_unused_parameters";
  note(values, unused, !values.flag(unused) && (stage == 0 || stage == 3),
       at_stage + ": stages 1 and 2 look for parameters that a step did not use.", problems);
  const char* const norm = "zero_optimization.compute_grad_norm";
  note(values, norm, !values.flag(norm),
       config.gradient_clipping > 0
           ? "false has no effect: gradient_clipping " + shown(Json(config.gradient_clipping)) +
                 " needs the norm. Set it to 0 to do without."
           : "false: the norm of gradients is not computed, nor logged.",
       problems);
}

/// Keys of zero_optimization and of communication whose effect depends on other keys, with several processes.
void zero_keys_of_several(const Effective& values, const Config& config, Problems& problems) {
  const std::int64_t stage = values.integer(kStage);
  const std::string at_stage = "has no effect at stage " + std::to_string(stage);
  const std::string no_gather = ": no process gathers parameters.";
  note(values, "zero_optimization.allgather_partitions", stage == 0 || stage == 3,
       at_stage + (stage == 0 ? no_gather : ", which gathers before each operator."), problems);
  note(values, "zero_optimization.allgather_bucket_size", stage == 0 || stage == 3,
       at_stage + (stage == 0 ? no_gather : ", which gathers through its own buckets."), problems);
  note(values, "zero_optimization.reduce_scatter", !values.flag("zero_optimization.reduce_scatter"),
       "false has no effect but on the checks: gradients always go to their owners, with the same result.", problems);
  const char* const hooks = "zero_optimization.grad_hooks";
  const bool overlaps = values.flag("zero_optimization.overlap_comm");
  note(values, hooks, !values.flag(hooks) && (stage != 1 || overlaps),
       stage != 1 ? "has an effect at stage 1 only."
                  : "false has no effect beside overlap_comm, which reduces during backward.",
       problems);
  const char* const load = "zero_optimization.load_from_fp32_weights";
  const bool fp32 = config.precision.compute == Precision::kFp32;
  note(values, load, !values.flag(load) && (stage == 0 || fp32),
       stage == 0 ? at_stage + "." : "false has no effect with float32: there are no 16-bit weights.", problems);
  note(values, "zero_optimization.zeropp_loco_param",
       stage == 3 && !values.flag("zero_optimization.zero_quantized_gradients"),
       "has no effect without zero_quantized_gradients, whose errors it feeds back.", problems);
  if (values.text("gradient_allreduce_op") == "sum") {
    const std::string no_mean = "has no effect beside gradient_allreduce_op \"sum\": nothing is divided.";
    note(values, "prescale_gradients", values.flag("prescale_gradients"), no_mean, problems);
    note(values, "gradient_predivide_factor", values.number("gradient_predivide_factor", 1) != 1, no_mean, problems);
  }
}

/// Keys of a dynamic loss scale where it is fixed, or where amp scales no loss.
void scale_keys(const Effective& values, const Config& config, Problems& problems) {
  const bool scales = config.precision.scales_loss;
  if (scales ? config.precision.loss_scale == 0 : !values.flag("amp.enabled")) return;
  const std::string section = scales ? config.precision.scaled_by : "amp";
  std::string names;
  for (const char* name : {"initial_scale_power", "loss_scale_window", "hysteresis", "consecutive_hysteresis",
                           "min_loss_scale", "max_loss_scale"}) {
    const SchemaNode* key = find_key(join_path(section, name));
    if (key != nullptr && differs(*key, values)) names += (names.empty() ? "" : ", ") + std::string(name);
  }
  if (names.empty()) return;
  const std::string why = scales ? "beside a fixed loss_scale, " + shown(Json(config.precision.loss_scale))
                                 : "with opt_level \"" + values.text("amp.opt_level") + "\", which scales no loss here";
  problems.notice(section, "without effect " + why + ": " + names + ".");
}

/// More ranks for the secondary copy than there are.
void secondary_ranks(const Effective& values, std::int64_t world, Problems& problems) {
  const std::string key = "zero_optimization.zero_hpz_partition_size";
  const std::int64_t ranks = values.integer(key, 1);
  if (!values.given(key) || values.integer(kStage) < 3 || ranks <= world) return;
  problems.notice(key, std::to_string(ranks) + " is taken as " + std::to_string(world) + ", the number of processes.");
}

void comms_logger_keys(const Effective& values, Problems& problems) {
  const std::string path = "comms_logger.prof_ops";
  const Json* ops = values.find(path);
  if (!values.given(path) || !ops || !ops->is_array() || !values.flag("comms_logger.enabled")) return;
  if (values.flag("comms_logger.prof_all")) {
    problems.notice(path, "has no effect while prof_all is true.");
    return;
  }
  const std::vector<std::string>& known = collective_names();
  for (std::size_t i = 0; i < ops->size(); ++i) {
    const Json& op = ops->as_array()[i];
    if (!op.is_string()) continue;  // reported already
    const std::string name(collective_name(op.as_string()));
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    std::string text = "'" + op.as_string() + "' does not occur here." + suggestion(name, known) + " There are";
    for (const std::string& one : known) text += (&one == &known.front() ? " " : ", ") + one;
    problems.warning(element_path(path, i), text + ".");
  }
}

}  // namespace

void report_idle_keys(const Effective& values, const Config& config, const ConfigContext& context,
                      const PluginIndex& plugins, Problems& problems) {
  const bool alone = context.world_known && config.batch.world_size == 1;
  const bool away = config.parameter_offload ||
                    (values.integer(kStage, 3) == 3 && values.text("zero_optimization.offload_param.device") == "nvme");
  IdleKeys(values, alone, away, plugins, problems).report();
  zero_keys(values, config, problems);
  if (!alone) zero_keys_of_several(values, config, problems);
  if (context.world_known && !alone) secondary_ranks(values, config.batch.world_size, problems);
  report_idle_offload_keys(values, config, plugins, problems);
  comms_logger_keys(values, problems);
  scale_keys(values, config, problems);
  if (context.check_only) {
    for (const IdleRunKey& idle : idle_run_keys(config.run, !config.run.eval_data_paths.empty())) {
      note(values, idle.key, true, idle.why, problems);
    }
  }
  const ComponentRef optimizer =
      config.optimizer ? plugins.find("optimizer", config.optimizer->type, config.optimizer->device) : ComponentRef{};
  if (optimizer && values.integer(kStage) == 1 && optimizer.component->has_trait("own_communication") &&
      optimizer.component->has_trait("needs_full_param")) {
    problems.notice(kStage, "stage 1 is stage 0 with '" + config.optimizer->type +
                                "': its processes go ways of their own, so each holds all of its state.");
  }
  if (values.flag("torch_autocast.enabled") && config.precision.autocast_dtype.empty()) {
    problems.notice("torch_autocast", "has no effect with float32, in which the model computes anyway.");
  }
  if (config.precision.fp32_buffers && !config.precision.fp32_buffers->empty() &&
      config.precision.compute == Precision::kFp32) {
    problems.notice("data_types.keep_in_fp32_modules",
                    "has no effect with float32, which all buffers but those of buffer_dtype have anyway.");
  }
  const bool divides_twice = values.flag("prescale_gradients") && values.number("gradient_predivide_factor", 1) != 1;
  if (divides_twice && values.text("gradient_allreduce_op") != "sum") {
    problems.notice("gradient_predivide_factor", "has no effect while prescale_gradients is true.");
  }
  const Json* printed = values.find("steps_per_print");
  const bool prints = printed && !printed->is_null();
  note(values, "timers.throughput.enabled", !prints && !values.flag("timers.throughput.enabled"),
       "has no effect without steps_per_print, in whose line the throughput stands.", problems);
  if (context.takes_steps && !config.gradient_clipping_given) {
    problems.notice("gradient_clipping", "is not given, so gradients are clipped at 1.0; 0 switches clipping off.");
  }
  if (const std::int64_t words = values.integer("vocabulary_size"); words % 8 != 0) {
    problems.warning("vocabulary_size", std::to_string(words) + " is not a multiple of 8, as tensor cores prefer.");
  }
}

}  // namespace capstan
