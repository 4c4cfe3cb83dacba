#include <cmath>

#include "tests/parity/parity_run.hpp"

namespace capstan::parity {

void Compared::add(double difference) {
  ++values;
  // A difference that is not a number is the greatest of all.
  if (!(difference <= greatest)) greatest = std::isnan(difference) ? INFINITY : difference;
}

bool Difference::within(const Tolerance& tolerance) const {
  return loss.greatest <= tolerance.loss && grad_norm.greatest <= tolerance.grad_norm &&
         final_norm.greatest <= tolerance.final_norm && lr.greatest <= tolerance.lr &&
         momentum.greatest <= tolerance.momentum && effective.greatest <= tolerance.effective &&
         masks.greatest <= tolerance.masks && clean_loss.greatest <= tolerance.clean_loss &&
         eigenvalue.greatest <= tolerance.eigenvalue && scale_steps <= tolerance.scale_steps;
}

Json report(const Difference& difference, const Tolerance& tolerance) {
  Json line = Json::object();
  line["pass"] = difference.within(tolerance);
  line["steps"] = difference.steps;
  const auto add = [&](const char* name, const Compared& compared, double allowed) {
    line[name]["difference"] = compared.values > 0 ? Json(compared.greatest) : Json();
    line[name]["values"] = compared.values;
    line[name]["tolerance"] = allowed;
  };
  add("loss", difference.loss, tolerance.loss);
  add("grad_norm", difference.grad_norm, tolerance.grad_norm);
  add("final_norm", difference.final_norm, tolerance.final_norm);
  line["final_norm"]["parameter"] = difference.final_norm_parameter;
  add("lr", difference.lr, tolerance.lr);
  add("momentum", difference.momentum, tolerance.momentum);
  add("effective", difference.effective, tolerance.effective);
  add("masks", difference.masks, tolerance.masks);
  add("clean_loss", difference.clean_loss, tolerance.clean_loss);
  add("eigenvalue", difference.eigenvalue, tolerance.eigenvalue);
  line["scale_steps"] = difference.scale_steps;
  return line;
}

}  // namespace capstan::parity
