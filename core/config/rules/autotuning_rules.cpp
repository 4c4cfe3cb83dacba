#include <string>

#include "core/config/language/language.hpp"
#include "core/config/rules/section_rules.hpp"
#include "core/schema/value.hpp"
#include "core/text/places.hpp"

namespace capstan {
namespace {

constexpr const char* kSection = "zero_optimization";

/// Values that are lists to search, in an object and those in it.
void refuse_lists(const Json& values, const std::string& path, Problems& problems) {
  for (const auto& [name, value] : values.as_object()) {
    const std::string where = join_path(path, name);
    const SchemaNode* node = find_key(where);
    if (node == nullptr) continue;
    if (value.is_object()) {
      refuse_lists(value, where, problems);
    } else if (value.is_array() && node->spec.type != KeySpec::Type::kArray) {
      problems.error(where, "is a list to search, " + shown(value) +
                                ", and this run trains. 'capstan tune' searches it; to train, write one value.");
    }
  }
}

}  // namespace

void check_tuning(const Effective& values, const Config& config, const ConfigContext& context, Problems& problems) {
  if (!values.flag("autotuning.enabled") || context.check_only) return;
  if (const Json* zero = values.find(kSection); zero && zero->is_object()) refuse_lists(*zero, kSection, problems);
  if (values.text("zero_optimization.stage") == "all") {
    problems.error("zero_optimization.stage",
                   "\"all\" is a list to search, and this run trains. 'capstan tune' searches it; to train, write one "
                   "stage.");
  }
  const std::string micro = "train_micro_batch_size_per_gpu";
  if (const Json* value = values.find(micro); value && value->is_array()) {
    problems.error(micro, "is a list to search, " + shown(*value) +
                              ", and this run trains. 'capstan tune' searches it; to train, write one value.");
  }
  const bool trial =
      config.autotuning.metric_path || (config.autotuning.model_info && config.autotuning.model_info->profile);
  if (context.takes_steps && !trial) {
    problems.notice("autotuning.enabled", "this run trains as the file says; 'capstan tune' searches for the fastest.");
  }
}

}  // namespace capstan
