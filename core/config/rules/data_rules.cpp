#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config/rules/section_rules.hpp"
#include "core/schema/value.hpp"
#include "core/text/places.hpp"

namespace capstan {
namespace {

constexpr const char* kEfficiency = "data_efficiency";

void require(const Json& section, const std::string& path, const char* key, const std::string& reason,
             Problems& problems) {
  if (section.find(key)) return;
  problems.error(join_path(path, key), "is missing; " + reason + " needs it.");
}

std::string text(const Json& section, const char* key) {
  const Json* value = section.find(key);
  return value && value->is_string() ? value->as_string() : "";
}

bool has_value(const Json& section, const char* key) {
  const Json* value = section.find(key);
  return value && !value->is_null();
}

/// Names the parameters that a pacing function of this type does not read.
void note_other_schedules(const Json& config, const std::string& where, const std::string& type, Problems& problems) {
  std::vector<const char*> unread = {"difficulty", "max_step"};
  if (type == "fixed_linear") unread.insert(unread.begin(), "root_degree");
  if (type == "fixed_discrete") unread = {"total_curriculum_step", "difficulty_step", "root_degree"};
  for (const char* key : unread) {
    if (!has_value(config, key)) continue;
    problems.notice(join_path(where, key), "has no effect with schedule_type \"" + type + "\".");
  }
}

/// The parameters of a pacing function: which ones there must be, and that they fit each other.
void check_schedule(const Json& section, const std::string& path, Problems& problems) {
  const std::string type = text(section, "schedule_type");
  if (type.empty() || type == "custom") return;
  const std::string where = join_path(path, "schedule_config"), reason = "schedule_type \"" + type + "\"";
  const Json* config = section.find("schedule_config");
  if (!config) {
    problems.error(where, "is missing; " + reason + " needs it.");
    return;
  }
  note_other_schedules(*config, where, type, problems);
  if (type == "fixed_discrete") {
    require(*config, where, "difficulty", reason, problems);
    require(*config, where, "max_step", reason, problems);
    const Json *difficulty = config->find("difficulty"), *steps = config->find("max_step");
    if (!difficulty || !steps) return;
    if (steps->size() == 0) problems.error(join_path(where, "max_step"), "must not be empty.");
    if (difficulty->size() != steps->size() + 1) {
      problems.error(join_path(where, "difficulty"),
                     "must have one entry more than max_step: " + std::to_string(steps->size() + 1) + ", got " +
                         std::to_string(difficulty->size()) + ".");
    }
    return;
  }
  require(*config, where, "total_curriculum_step", reason, problems);
  require(*config, where, "difficulty_step", reason, problems);
  if (type == "fixed_root") require(*config, where, "root_degree", reason, problems);
  const Json* step = config->find("difficulty_step");
  if (step && step->is_integer() && step->as_integer() % 8 != 0) {
    problems.warning(join_path(where, "difficulty_step"),
                     shown(*step) + " is not a multiple of 8, as tensor cores prefer.");
  }
}

void check_limits(const Json& section, const std::string& path, Problems& problems) {
  const Json *low = section.find("min_difficulty"), *high = section.find("max_difficulty");
  if (low && high && low->is_integer() && high->is_integer() && low->as_integer() > high->as_integer()) {
    problems.error(join_path(path, "min_difficulty"), shown(*low) + " is above max_difficulty, " + shown(*high) + ".");
  }
}

double number(const Json& section, const char* key) {
  const Json* value = section.find(key);
  return value && value->is_number() ? value->as_number() : 0;
}

/// The difficulty of step 1, as the schedules of plugins/data have it; 0 where the values do not say.
std::int64_t first_difficulty(const Json& section) {
  const std::string type = text(section, "schedule_type");
  const Json* config = section.find("schedule_config");
  const double low = number(section, "min_difficulty"), high = number(section, "max_difficulty");
  if (!config || type.empty() || type == "custom" || low <= 0 || high < low) return 0;
  double first = 0;
  if (type == "fixed_discrete") {
    const Json* levels = config->find("difficulty");
    const bool known = levels && levels->is_array() && levels->size() > 0 && levels->as_array()[0].is_number();
    first = known ? levels->as_array()[0].as_number() : 0;
  } else {
    const double total = number(*config, "total_curriculum_step"), step = number(*config, "difficulty_step");
    const double degree = type == "fixed_root" ? number(*config, "root_degree") : 1;
    if (total <= 0 || step <= 0 || degree <= 0) return 0;
    first = std::floor(std::pow(1 / total, 1 / degree) * (high - low) + low);
    first -= std::fmod(first, step);
  }
  return static_cast<std::int64_t>(std::clamp(first, low, high));
}

/// Layouts of sparse attention want a number of blocks in a sequence, and a curriculum begins with short sequences.
void check_blocks_of_first_sequences(const Effective& values, const Json& section, const std::string& path,
                                     Problems& problems) {
  constexpr std::pair<const char*, std::string_view> kWanted[] = {
      {"num_random_blocks", "variable bigbird"},
      {"num_sliding_window_blocks", "bigbird bslongformer"},
      {"num_global_blocks", "bigbird"},
  };
  const std::string mode = values.given("sparse_attention") ? values.text("sparse_attention.mode") : "";
  const std::int64_t block = values.integer("sparse_attention.block", 0), length = first_difficulty(section);
  if (mode.empty() || block <= 0 || length <= 0) return;
  const std::int64_t blocks = (length - 1) / block + 1;
  for (const auto& [key, modes] : kWanted) {
    const std::string where = std::string("sparse_attention.") + key;
    const std::int64_t wanted = values.integer(where, 0);
    if (modes.find(mode) == std::string_view::npos || wanted <= blocks) continue;
    problems.error(where, std::to_string(wanted) + " is above the " + std::to_string(blocks) +
                              (blocks == 1 ? " block" : " blocks") + " of the first sequences, which " + path +
                              " cuts to " + std::to_string(length) + " tokens. Lower it, or begin with at least " +
                              std::to_string((wanted - 1) * block + 1) + " tokens.");
  }
}

void check_legacy_curriculum(const Effective& values, Problems& problems) {
  const std::string path = "curriculum_learning";
  if (!values.flag(path + ".enabled")) return;
  const Json& section = *values.find(path);
  for (const char* key : {"curriculum_type", "min_difficulty", "max_difficulty", "schedule_type"}) {
    require(section, path, key, "the curriculum", problems);
  }
  check_limits(section, path, problems);
  check_schedule(section, path, problems);
  check_blocks_of_first_sequences(values, section, path, problems);
}

void check_metric(const Json& metric, const std::string& path, Problems& problems) {
  // A single cluster holds all samples: no file is looked at.
  if (text(metric, "clustering_type") == "schedule_based") {
    require(metric, path, "index_to_sample_path", "clustering_type \"schedule_based\"", problems);
    if (text(metric, "difficulty_type") == "value") {
      require(metric, path, "index_to_metric_path", "difficulty_type \"value\"", problems);
    }
  }
  const bool single = text(metric, "clustering_type") == "single_cluster";
  if (has_value(metric, "index_to_metric_path") && (single || text(metric, "difficulty_type") == "percentile")) {
    problems.notice(join_path(path, "index_to_metric_path"),
                    std::string("has no effect with ") +
                        (single ? "clustering_type \"single_cluster\"" : "difficulty_type \"percentile\"") +
                        ": the file is not read.");
  }
  check_limits(metric, path, problems);
  check_schedule(metric, path, problems);
}

void check_sampling(const Effective& values, Problems& problems) {
  const std::string curriculum = "data_efficiency.data_sampling.curriculum_learning";
  if (values.flag(curriculum + ".enabled")) {
    const Json& section = *values.find(curriculum);
    require(section, curriculum, "data_cluster_path", "the curriculum", problems);
    const Json* metrics = section.find("curriculum_metrics");
    if (!metrics || metrics->size() == 0) {
      problems.error(join_path(curriculum, "curriculum_metrics"),
                     "is missing; the curriculum needs at least one metric.");
    } else {
      for (const auto& [name, metric] : metrics->as_object()) {
        const std::string where = join_path(curriculum + ".curriculum_metrics", name);
        check_metric(metric, where, problems);
        const bool cuts = name == "seqlen_truncate" || name == "seqlen_reshape";
        if (cuts) check_blocks_of_first_sequences(values, metric, where, problems);
      }
    }
  }
  const std::string batching = "data_efficiency.data_sampling.dynamic_batching";
  if (values.flag(batching + ".enabled"))
    require(*values.find(batching), batching, "max_tokens", "dynamic batching", problems);
}

/// What the layers take and how many tokens they keep.
void check_random_ltd_values(const Effective& values, const std::string& path, Problems& problems) {
  const Json* mask = values.find(path + ".model_mask_name");
  if (values.text(path + ".model_type") == "encoder" && values.given(path + ".model_mask_name") &&
      (!mask || mask->is_null())) {
    problems.error(path + ".model_mask_name",
                   "null says that the layers take no mask; model_type \"encoder\" needs one. Name the argument.");
  }
  const std::string schedule = path + ".random_ltd_schedule";
  const std::int64_t low = values.integer(schedule + ".min_value", 0),
                     high = values.integer(schedule + ".max_value", 0);
  if (low > high && high > 0) {
    problems.error(schedule + ".min_value", std::to_string(low) + " is above max_value, " + std::to_string(high) + ".");
  }
}

void check_random_ltd(const Effective& values, Problems& problems) {
  const std::string path = "data_efficiency.data_routing.random_ltd";
  if (values.flag(path + ".layer_token_lr_schedule.enabled")) {
    problems.error(path + ".layer_token_lr_schedule.enabled",
                   "is not implemented, here or in DeepSpeed. Set it to false.");
  }
  if (!values.flag(path + ".enabled")) return;
  const Json& section = *values.find(path);
  for (const char* key :
       {"total_layer_num", "random_ltd_layer_num", "random_ltd_layer_id", "model_type", "hidden_state_order"}) {
    require(section, path, key, "random-LTD", problems);
  }
  if (!values.given(path + ".model_mask_name")) {
    problems.error(path + ".model_mask_name",
                   "is missing; random-LTD needs it. null says that the layers take no mask.");
  }
  const std::string schedule = path + ".random_ltd_schedule";
  for (const char* key : {"min_value", "max_value", "schedule_type"})
    require(*values.find(schedule), schedule, key, "random-LTD", problems);
  const std::string config = schedule + ".schedule_config";
  for (const char* key : {"require_steps", "seq_per_step"})
    require(*values.find(config), config, key, "random-LTD", problems);
  const Json* layers = section.find("random_ltd_layer_id");
  const std::int64_t count = values.integer(path + ".random_ltd_layer_num", -1);
  if (layers && count >= 0 && static_cast<std::int64_t>(layers->size()) != count) {
    problems.error(path + ".random_ltd_layer_num", std::to_string(count) +
                                                       " is not the number of entries of random_ltd_layer_id, " +
                                                       std::to_string(layers->size()) + ".");
  }
  check_random_ltd_values(values, path, problems);
}

/// An inner switch that is on under an outer one that is off.
void check_chain(const Effective& values, const std::string& path, Problems& problems) {
  if (!values.flag(path + ".enabled")) return;
  for (auto dot = path.rfind('.'); dot != std::string::npos; dot = path.rfind('.', dot - 1)) {
    const std::string outer = path.substr(0, dot) + ".enabled";
    const Json* value = values.find(outer);
    if (!value || !value->is_bool() || value->as_bool()) continue;
    problems.warning(path + ".enabled", "has no effect: " + outer + " is false.");
    return;
  }
}

}  // namespace

void check_data_rules(const Effective& values, const Config& config, Problems& problems) {
  if (config.run.sampler && values.given("capstan.data.shuffle")) {
    problems.notice("capstan.data.shuffle",
                    "has no effect: " + config.run.sampler->where + " gives samples their order.");
  }
  check_legacy_curriculum(values, problems);
  if (!values.find(kEfficiency)) return;
  check_sampling(values, problems);
  check_random_ltd(values, problems);
  for (const char* inner : {"data_efficiency.data_sampling", "data_efficiency.data_sampling.curriculum_learning",
                            "data_efficiency.data_sampling.dynamic_batching", "data_efficiency.data_routing",
                            "data_efficiency.data_routing.random_ltd"}) {
    check_chain(values, inner, problems);
  }
}

}  // namespace capstan
