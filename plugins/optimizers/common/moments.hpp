#pragma once

namespace capstan::elements {

/// Numbers of the averages that most optimizers keep of the gradient and of its square.
struct Moments {
  Moments() = default;  // values are set later
  Moments(double grad_scale, double l2, double beta1, double beta2)
      : grad_scale(static_cast<float>(grad_scale)),
        l2(static_cast<float>(l2)),
        beta1(static_cast<float>(beta1)),
        one_minus_beta1(static_cast<float>(1.0 - beta1)),
        beta2(static_cast<float>(beta2)),
        one_minus_beta2(static_cast<float>(1.0 - beta2)) {}

  float grad_scale;
  float l2;  // weight decay that joins the gradient
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
};

}  // namespace capstan::elements

/// The bundled optimizers are made of what the SDK has for rules of elements.
namespace capstan::optimizers {
using namespace elements;
}  // namespace capstan::optimizers
