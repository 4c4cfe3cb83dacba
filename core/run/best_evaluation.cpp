#include "core/run/best_evaluation.hpp"

namespace capstan {

bool BestEvaluation::take(std::int64_t step, double loss) {
  if (last_ == step) return false;
  last_ = step;
  const bool lower = step_ ? loss < loss_ : loss == loss;
  if (lower) {
    step_ = step;
    loss_ = loss;
  }
  since_ = lower ? 0 : since_ + 1;
  return lower;
}

Json BestEvaluation::json() const {
  Json json = Json::object();
  json["since"] = since_;
  if (last_) json["last"] = *last_;
  if (!step_) return json;
  json["step"] = *step_;
  json["loss"] = loss_;
  return json;
}

void BestEvaluation::load(const Json* saved) {
  *this = {};
  if (saved == nullptr || !saved->is_object()) return;
  const auto whole = [&](const char* name) -> std::optional<std::int64_t> {
    const Json* value = saved->find(name);
    return value != nullptr && value->is_integer() ? std::optional(value->as_integer()) : std::nullopt;
  };
  last_ = whole("last");
  since_ = whole("since").value_or(0);
  const Json* loss = saved->find("loss");
  if (loss == nullptr || !loss->is_number()) return;
  step_ = whole("step");
  loss_ = loss->as_number();
}

}  // namespace capstan
