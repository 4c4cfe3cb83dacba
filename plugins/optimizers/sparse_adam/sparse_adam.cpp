#include <cmath>
#include <cstdint>

#include "capstan/sdk/floats.hpp"
#include "capstan/sdk/optimizer.hpp"
#include "capstan/sdk/parallel.hpp"

namespace capstan::optimizers {
namespace {

enum State : std::size_t { kStep, kExpAvg, kExpAvgSq };

constexpr std::int64_t kGrain = 8192;  // elements that one thread should at least have to do

struct SparseAdamGroup {
  double lr, beta1, beta2, eps;
  bool maximize;
};

/// One parameter in one update:  m += (1-b1)*(g - m);  v += (1-b2)*(g^2 - v);
///   p -= lr * sqrt(1-b2^t) / (1-b1^t) * m / (sqrt(v) + eps)
struct SparseAdamUpdate {
  SparseAdamUpdate(const sdk::Slot& slot, const SparseAdamGroup& group, double grad_scale)
      : param(slot.param()),
        first(slot.floats(kExpAvg)),
        second(slot.floats(kExpAvgSq)),
        grad(slot.grad()),
        factor(static_cast<float>(group.maximize ? -grad_scale : grad_scale)),
        fresh1(static_cast<float>(1.0 - group.beta1)),
        fresh2(static_cast<float>(1.0 - group.beta2)),
        eps(static_cast<float>(group.eps)) {
    const auto t = static_cast<double>(++slot.counter(kStep));
    rate = static_cast<float>(group.lr * std::sqrt(1.0 - std::pow(group.beta2, t)) / (1.0 - std::pow(group.beta1, t)));
  }

  void run(std::size_t begin, std::size_t end) const {
    for (std::size_t i = begin; i < end; ++i) {
      const float g = sdk::value_at(grad, i) * factor;
      first[i] += fresh1 * (g - first[i]);
      second[i] += fresh2 * (g * g - second[i]);
      param[i] -= rate * first[i] / (std::sqrt(second[i]) + eps);
    }
  }

  float *param, *first, *second;
  sdk::Values grad;
  float factor, fresh1, fresh2, eps, rate;
};

class SparseAdam {
 public:
  SparseAdam(const sdk::Host&, const sdk::Params& params) : allow_dense_(params.boolean("allow_dense")) {}

  void update(const sdk::Slots& slots, const sdk::Step& step) const {
    const auto groups = step.each_group(&read);
    for (const sdk::Slot slot : slots) refuse_dense(slot);
    for (const sdk::Slot slot : slots) update(slot, groups[slot.group()], step.grad_scale());
  }

 private:
  static SparseAdamGroup read(const sdk::Group& group) {
    double betas[2];
    group.read("betas", betas, 2);
    return {group.number("lr"), betas[0], betas[1], group.number("eps"), group.boolean("maximize")};
  }

  void refuse_dense(const sdk::Slot& slot) const {
    if (allow_dense_ || slot.has_sparse_grad()) return;
    slot.fail(
        "has a dense gradient, and SparseAdam updates the rows of sparse ones. Build the embedding with sparse = true, "
        "set optimizer.params.allow_dense, which updates all rows of such parameters, or choose Adam.");
  }

  static void update(const sdk::Slot& slot, const SparseAdamGroup& group, double grad_scale) {
    const SparseAdamUpdate update(slot, group, grad_scale);
    if (!slot.has_sparse_grad()) {
      sdk::parallel_for(0, static_cast<std::int64_t>(slot.numel()), kGrain, [&](std::int64_t begin, std::int64_t end) {
        update.run(static_cast<std::size_t>(begin), static_cast<std::size_t>(end));
      });
      return;
    }
    const auto rows = slot.grad_rows();
    if (rows.empty() || slot.numel() == 0) return;
    const std::size_t width = slot.numel() / static_cast<std::size_t>(slot.full_shape()[0]);
    const auto grain = 1 + kGrain / static_cast<std::int64_t>(width);
    sdk::parallel_for(0, static_cast<std::int64_t>(rows.size()), grain, [&](std::int64_t begin, std::int64_t end) {
      for (auto k = static_cast<std::size_t>(begin); k < static_cast<std::size_t>(end); ++k) {
        const auto row = static_cast<std::size_t>(rows[k]);
        update.run(row * width, (row + 1) * width);
      }
    });
  }

  bool allow_dense_;
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::SparseAdam, "SparseAdam">)
