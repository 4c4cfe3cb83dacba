#pragma once

#include <cmath>
#include <cstdint>

#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/adam/adam_kernel.hpp"
#include "plugins/optimizers/common/moment_group.hpp"

namespace capstan::optimizers {

/// The states of the manifest.
enum AdamState : std::size_t { kExpAvg, kExpAvgSq, kMaxExpAvgSq, kStep };

/// A group's numbers, as configured.
struct AdamGroup : MomentGroup {
  bool amsgrad;
};

/// What Adam and AdamW are told, on every device.
class AdamSettings {
 public:
  AdamSettings(const sdk::Params& params, bool always_decoupled)
      : decoupled_(always_decoupled || params.boolean("adam_w_mode")),
        torch_adam_(params.boolean("torch_adam")),
        bias_correction_(params.boolean("bias_correction")),
        // torch's AdamW decays by 0.01 unless told otherwise, every other form by nothing.
        default_decay_(torch_adam_ && decoupled_ ? 0.01 : 0.0) {
    params.require(torch_adam_ || !params.boolean("amsgrad"), "amsgrad",
                   "true needs \"torch_adam\": true beside it; only torch's form of Adam has AMSGrad.");
    params.require(
        !torch_adam_ || bias_correction_, "bias_correction",
        "false is not possible with \"torch_adam\": true, which always corrects the bias. Remove one of them.");
  }

  AdamGroup read(const sdk::Group& group) const {
    return {MomentGroup::of(group, group.number_or("weight_decay", default_decay_)), group.boolean("amsgrad")};
  }

  /// The numbers that the kernel takes of a group at step `t`, 1 for the first.
  AdamNumbers numbers_at(const AdamGroup& group, std::int64_t t, double grad_scale) const {
    const double c1 = bias_correction_ ? 1.0 - std::pow(group.beta1, static_cast<double>(t)) : 1.0;
    const double c2 = bias_correction_ ? 1.0 - std::pow(group.beta2, static_cast<double>(t)) : 1.0;
    return {.moments = Moments(grad_scale, decoupled_ ? 0.0 : group.weight_decay, group.beta1, group.beta2),
            .lr = static_cast<float>(group.lr),
            .eps = static_cast<float>(group.eps),
            .decay = static_cast<float>(decoupled_ ? group.weight_decay : 0.0),
            .inverse_c1 = static_cast<float>(1.0 / c1),
            .inverse_sqrt_c2 = static_cast<float>(1.0 / std::sqrt(c2))};
  }

 private:
  bool decoupled_;
  bool torch_adam_;
  bool bias_correction_;
  double default_decay_;
};

/// The types "Adam" and "AdamW" of a device: `Base` is built with what says that the decay is always decoupled.
template <class Base>
struct AdamTypes {
  /// Decoupled decay unless adam_w_mode is false.
  struct Plain : Base {
    Plain(const sdk::Host& host, const sdk::Params& params) : Base(host, params, false) {}
  };
  /// Decoupled decay always.
  struct W : Base {
    W(const sdk::Host& host, const sdk::Params& params) : Base(host, params, true) {
      if (host.rank() == 0 && !params.boolean("adam_w_mode")) {
        host.info(
            "adam_w_mode: false has no effect on AdamW, whose decay is always decoupled. For decay as a part of the "
            "gradient, take the type Adam with it.");
      }
    }
  };
};

}  // namespace capstan::optimizers
