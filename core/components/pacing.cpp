#include "core/components/pacing.hpp"

#include "core/errors.hpp"
#include "core/host_words.hpp"

namespace capstan {

std::int64_t Pacing::at(std::string_view metric, std::int64_t step) const {
  if (const auto function = functions_.find(metric); function != functions_.end()) return function->second(step);
  const std::string name(metric);
  if (!component_) {
    throw ConfigError("the schedule of '" + name + "' is \"custom\", and nothing says its difficulty. Call " +
                      host_words().call + "set_difficulty_schedule(\"" + name +
                      "\", function), or name a component of kind \"pacing\" in capstan.data.pacing.");
  }
  std::int64_t difficulty = 0;
  call_plugin(component_->function("difficulty"),
              "pacing '" + component_->manifest().type + "', metric '" + name + "', step " + std::to_string(step),
              [&](capstan_error* error) {
                return component_->vtable<capstan_pacing>()->difficulty(component_->self(), as_str(metric), step,
                                                                        &difficulty, error);
              });
  return difficulty;
}

}  // namespace capstan
