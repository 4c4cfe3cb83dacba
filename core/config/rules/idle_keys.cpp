#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/config/language/key_reader.hpp"
#include "core/config/language/language.hpp"
#include "core/config/rules/rules.hpp"
#include "core/text/nearest.hpp"
#include "core/text/places.hpp"

namespace capstan {
namespace {

/// Keys of stage 3 that nothing here acts on.
constexpr std::pair<const char*, const char*> kIdleAtStage3[] = {
    {"zero_optimization.stage3_module_granularity_threshold",
     "has no effect here: operators bring parameters, not modules."},
    {"zero_optimization.leaf_module", "has no effect here: operators bring parameters, not modules."},
    {"zero_optimization.stage3_use_all_reduce_for_fetch_params",
     "has no effect here: parts are gathered as they are, with the same result."},
    {"zero_optimization.memory_efficient_linear",
     "has no effect here: what autograd saves of a parameter leaves with it."},
    {"zero_optimization.override_module_apply", "has no effect here: initialisers run as the model calls them."},
    {"zero_optimization.pipeline_loading_checkpoint", "has no effect here: each rank reads the parts that it needs."},
    {"zero_optimization.log_trace_cache_warnings", "has no effect here: a changed order is always said, once."},
    {"zero_optimization.enable_sanity_checks", "has no effect here: the checks are always made."},
    {"zero_optimization.mics_shard_size", "has no effect here: parameters are partitioned over all ranks."},
    {"zero_optimization.mics_hierarchical_params_gather",
     "has no effect here: parameters are partitioned over all ranks."}};

constexpr const char* kStage = "zero_optimization.stage";

void no_effect_rows(const SchemaNode& node, const Effective& values, Problems& problems) {
  if (node.has(kNoEffect) && values.given(node.path))
    problems.notice(node.path, "has no effect here. " + node.spec.summary);
  for (const auto& member : node.members) no_effect_rows(*member, values, problems);
}

void zero_stage_keys(const Effective& values, Problems& problems) {
  const std::int64_t stage = values.integer(kStage);
  std::string idle;
  for (const auto& member : language().member("zero_optimization")->members) {
    const bool of_stage3 = member->spec.name.starts_with("stage3_");
    if (of_stage3 && stage < 3 && values.given(member->path)) idle += (idle.empty() ? "" : ", ") + member->spec.name;
  }
  if (!idle.empty())
    problems.notice("zero_optimization",
                    "keys of stage 3 have no effect at stage " + std::to_string(stage) + ": " + idle + ".");
  const auto note = [&](const char* key, bool used, const char* reason) {
    if (!used && values.given(key)) problems.notice(key, reason);
  };
  note("zero_optimization.allgather_bucket_size", stage != 3,
       "has no effect at stage 3, which gathers through its own buckets.");
  note("zero_optimization.round_robin_gradients", false, "has no effect here: every bucket is spread over all ranks.");
  note("zero_optimization.use_multi_rank_bucket_allreduce", false,
       "has no effect here: a bucket goes to all its owners in one call.");
  note("zero_optimization.contiguous_gradients", values.flag("zero_optimization.contiguous_gradients"),
       "has no effect here: gradients are always gathered in one buffer.");
  note("zero_optimization.reduce_scatter", values.flag("zero_optimization.reduce_scatter"),
       "false has no effect but on the checks: gradients always go to their owners, with the same result.");
  note("zero_optimization.grad_hooks", stage == 1, "has an effect at stage 1 only.");
  for (const auto& [key, reason] : kIdleAtStage3) note(key, false, reason);
}

/// True when an error in a section is reported already.
bool is_refused(const std::string& path, const Problems& problems) {
  return std::any_of(problems.all().begin(), problems.all().end(), [&](const Problem& problem) {
    return problem.severity == Problem::Severity::kError &&
           (problem.path == path || problem.path.starts_with(path + "."));
  });
}

/// True when a plugin carries out a part of a section.
bool is_read_below(const std::string& path, const PluginIndex& plugins) {
  for (const IndexedPlugin& plugin : plugins.plugins()) {
    for (const ComponentManifest& component : plugin.manifest.components) {
      if (component.section.starts_with(path + ".")) return true;
    }
  }
  return false;
}

/// Top-level keys that are checked, but that nothing here acts on. What is switched off says so itself; of ZeRO's keys
/// the stage says which there are.
void unread_sections(const Effective& values, const PluginIndex& plugins, Problems& problems) {
  for (const auto& member : language().members) {
    const std::string& path = member->path;
    if (!values.given(path) || member->has(kNoEffect) || path == "zero_optimization") continue;
    const Json* enabled = values.find(path + ".enabled");
    const bool off = enabled && enabled->is_bool() && !enabled->as_bool();
    if (off || !key_reader(path, plugins).empty() || is_read_below(path, plugins) || is_refused(path, problems))
      continue;
    problems.notice(path, "is checked, but nothing in this installation acts on it.");
  }
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
  unread_sections(values, plugins, problems);
  no_effect_rows(language(), values, problems);
  zero_stage_keys(values, problems);
  comms_logger_keys(values, problems);
  if (const std::int64_t stage = values.integer(kStage);
      stage > 0 && context.world_known && config.batch.world_size == 1) {
    problems.notice(kStage,
                    "stage " + std::to_string(stage) + " with one process is stage 0: that process holds everything.");
  }
  const ComponentRef optimizer =
      config.optimizer ? plugins.find("optimizer", config.optimizer->type, config.device) : ComponentRef{};
  if (optimizer && values.integer(kStage) == 1 && optimizer.component->has_trait("own_communication") &&
      optimizer.component->has_trait("needs_full_param")) {
    problems.notice(kStage, "stage 1 is stage 0 with '" + config.optimizer->type +
                                "': its processes go ways of their own, so each holds all of its state.");
  }
  for (const auto& member : language().member("checkpoint")->members) {
    const bool decoupled = member->spec.name == "writer" && values.flag("checkpoint.writer.decoupled");
    const bool acts =
        member->spec.name == "tag_validation" || member->spec.name == "use_node_local_storage" || decoupled;
    if (acts || member->has(kNoEffect) || !values.given(member->path)) continue;
    problems.notice(member->path, "is checked, but nothing in this installation acts on it.");
  }
  const std::string device = values.text("zero_optimization.offload_optimizer.device");
  if (device == "cpu" && config.device == "cpu" && values.integer(kStage) > 0) {
    problems.notice("zero_optimization.offload_optimizer",
                    "has no effect in this run, whose device is the CPU: the state is in host memory already.");
  }
  for (const char* key : {"amp.num_losses", "amp.verbosity"}) {
    if (values.flag("amp.enabled") && values.given(key))
      problems.notice(key, "has no effect here: there is one loss, and nothing to be told.");
  }
  if (values.flag("torch_autocast.enabled") && config.precision.autocast_dtype.empty()) {
    problems.notice("torch_autocast", "has no effect with float32, in which the model computes anyway.");
  }
  if (values.flag("prescale_gradients") && values.number("gradient_predivide_factor", 1) != 1) {
    problems.notice("gradient_predivide_factor", "has no effect while prescale_gradients is true.");
  }
  if (!config.gradient_clipping_given) {
    problems.notice("gradient_clipping", "is not given, so gradients are clipped at 1.0; 0 switches clipping off.");
  }
  if (const std::int64_t words = values.integer("vocabulary_size"); words % 8 != 0) {
    problems.warning("vocabulary_size", std::to_string(words) + " is no multiple of 8, which tensor cores want.");
  }
}

}  // namespace capstan
