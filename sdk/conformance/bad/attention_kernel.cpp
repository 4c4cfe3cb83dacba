// Attention over set blocks, score by score, and every way to get it wrong.
#include "capstan/sdk/attention_kernel.hpp"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <limits>
#include <vector>

#include "bad.hpp"
#include "creation.hpp"

namespace {

namespace sdk = capstan::sdk;
using std::int64_t;

/// Elements of rows as doubles.
class Elements {
 public:
  Elements(const sdk::Rows& rows, int64_t batch, int64_t head)
      : rows_(rows), first_(batch * rows.batch_stride + head * rows.head_stride) {}
  double get(int64_t token, int64_t i) const {
    const int64_t at = first_ + token * rows_.token_stride + i;
    if (rows_.dtype == sdk::Dtype::kFloat32) return static_cast<const float*>(rows_.data)[at];
    if (rows_.dtype == sdk::Dtype::kBFloat16) return static_cast<const c10::BFloat16*>(rows_.data)[at];
    return static_cast<const c10::Half*>(rows_.data)[at];
  }
  void set(int64_t token, int64_t i, double value) const {
    const int64_t at = first_ + token * rows_.token_stride + i;
    const auto narrow = static_cast<float>(value);
    if (rows_.dtype == sdk::Dtype::kFloat32) static_cast<float*>(rows_.data)[at] = narrow;
    if (rows_.dtype == sdk::Dtype::kBFloat16) static_cast<c10::BFloat16*>(rows_.data)[at] = narrow;
    if (rows_.dtype == sdk::Dtype::kFloat16) static_cast<c10::Half*>(rows_.data)[at] = narrow;
  }

 private:
  const sdk::Rows& rows_;
  int64_t first_;
};

double dot(const Elements& a, int64_t row_a, const Elements& b, int64_t row_b, int64_t width) {
  double sum = 0;
  for (int64_t i = 0; i < width; ++i) sum += a.get(row_a, i) * b.get(row_b, i);
  return sum;
}

class Bad {
 public:
  struct Plan {
    sdk::AttentionLayout layout;
    std::vector<std::uint8_t> cells;
  };

  Bad(const sdk::Host&, const sdk::Params& params) { create_badly(params); }

  std::unique_ptr<Plan> prepare(const sdk::AttentionLayout& layout) const {
    auto plan = std::make_unique<Plan>();
    plan->layout = layout;
    plan->cells.assign(layout.cells, layout.cells + std::size_t{layout.heads} * layout.blocks * layout.blocks);
    if (breaks("forward_cell")) plan->cells[0] = 0;  // a layout with one block dropped
    plan->layout.cells = plan->cells.data();
    return plan;
  }

  void forward(const Plan& plan, const sdk::AttentionCall& call, const sdk::Rows& out, float* log_sum_exp) const {
    leak_in_call();
    for (int64_t batch = 0; batch < call.q.batch; ++batch) {
      for (int64_t head = 0; head < call.q.heads; ++head) {
        const Elements v(call.v, batch, head), to(out, batch, head);
        for (int64_t query = 0; query < call.q.tokens; ++query) {
          const std::vector<double> scores = scores_of(plan, call, batch, head, query);
          double sum = 0;
          for (const double score : scores) sum += std::exp(score);
          const double all = std::log(sum);
          log_sum_exp[(batch * call.q.heads + head) * call.q.tokens + query] =
              static_cast<float>(breaks("forward_lse") ? 0 : all);
          for (int64_t i = 0; i < out.width; ++i) {
            double value = 0;
            for (std::size_t key = 0; key < scores.size(); ++key) {
              if (sum > 0) value += std::exp(scores[key] - all) * v.get(static_cast<int64_t>(key), i);
            }
            if (breaks("threads")) value += at::get_num_threads() * 1e-6;
            to.set(query, i, value);
          }
        }
      }
    }
  }

  void backward(const Plan& plan, const sdk::AttentionCall& call, const sdk::AttentionGradients& gradients) const {
    for (int64_t batch = 0; batch < call.q.batch; ++batch) {
      for (int64_t head = 0; head < call.q.heads; ++head) backward(plan, call, gradients, batch, head);
    }
  }

 private:
  static std::vector<double> scores_of(const Plan& plan, const sdk::AttentionCall& call, int64_t batch, int64_t head,
                                       int64_t query) {
    const double none = -std::numeric_limits<double>::infinity();
    const Elements q(call.q, batch, head), k(call.k, batch, head);
    std::vector<double> scores(static_cast<std::size_t>(call.q.tokens), none);
    const auto block = static_cast<int64_t>(plan.layout.block);
    for (int64_t key = 0; key < call.q.tokens; ++key) {
      const bool set = plan.layout.is_set(static_cast<std::uint32_t>(head), static_cast<std::uint32_t>(query / block),
                                          static_cast<std::uint32_t>(key / block));
      if (!set || (plan.layout.causal && key > query && !breaks("forward_causal"))) continue;
      double& score = scores[static_cast<std::size_t>(key)];
      score = call.scale * dot(q, query, k, key, call.q.width);
      if (breaks("terms")) continue;
      for (const sdk::AttentionTerm& term : call.terms) {
        const int64_t at =
            batch * term.batch_stride + head * term.head_stride + query * term.query_stride + key * term.key_stride;
        if (!term.mask) score += static_cast<const float*>(term.values)[at];
        if (term.mask && !static_cast<const bool*>(term.values)[at]) score = none;
      }
    }
    return scores;
  }

  static void backward(const Plan& plan, const sdk::AttentionCall& call, const sdk::AttentionGradients& gradients,
                       int64_t batch, int64_t head) {
    const int64_t tokens = call.q.tokens;
    const Elements q(call.q, batch, head), k(call.k, batch, head), v(call.v, batch, head);
    const Elements out(gradients.out, batch, head), grad(gradients.grad, batch, head);
    const Elements to_q(gradients.q, batch, head), to_k(gradients.k, batch, head), to_v(gradients.v, batch, head);
    const auto width = static_cast<std::size_t>(call.q.width), width_v = static_cast<std::size_t>(call.v.width);
    std::vector<double> sum_q(static_cast<std::size_t>(tokens) * width), sum_k(sum_q),
        sum_v(static_cast<std::size_t>(tokens) * width_v);
    for (int64_t query = 0; query < tokens; ++query) {
      const std::vector<double> scores = scores_of(plan, call, batch, head, query);
      const float all = gradients.log_sum_exp[(batch * call.q.heads + head) * tokens + query];
      const double delta = dot(grad, query, out, query, call.v.width);
      for (int64_t key = 0; key < tokens; ++key) {
        const double score = scores[static_cast<std::size_t>(key)];
        if (std::isinf(score)) continue;
        const double p = std::exp(score - all), of_score = p * (dot(grad, query, v, key, call.v.width) - delta);
        for (const sdk::AttentionTerm& term : call.terms) {
          if (term.grad == nullptr || breaks("terms_gradient")) continue;
          term.grad[((batch * call.q.heads + head) * tokens + query) * tokens + key] = static_cast<float>(of_score);
        }
        for (std::size_t i = 0; i < width; ++i) {
          const auto at = static_cast<int64_t>(i);
          sum_q[static_cast<std::size_t>(query) * width + i] += call.scale * of_score * k.get(key, at);
          if (!breaks("gradients"))
            sum_k[static_cast<std::size_t>(key) * width + i] += call.scale * of_score * q.get(query, at);
        }
        for (std::size_t i = 0; i < width_v; ++i) {
          sum_v[static_cast<std::size_t>(key) * width_v + i] += p * grad.get(query, static_cast<int64_t>(i));
        }
      }
    }
    for (int64_t token = 0; token < tokens; ++token) {
      for (std::size_t i = 0; i < width; ++i) {
        to_q.set(token, static_cast<int64_t>(i), sum_q[static_cast<std::size_t>(token) * width + i]);
        to_k.set(token, static_cast<int64_t>(i), sum_k[static_cast<std::size_t>(token) * width + i]);
      }
      for (std::size_t i = 0; i < width_v; ++i) {
        to_v.set(token, static_cast<int64_t>(i), sum_v[static_cast<std::size_t>(token) * width_v + i]);
      }
    }
  }
};

constexpr capstan_component kBad = with_raw_create<Bad>(sdk::attention_kernel<Bad, "Bad">);

constexpr capstan_attention without_forward() {
  capstan_attention table = sdk::AttentionKernelCalls<Bad>::kTable;
  table.forward = nullptr;
  return table;
}
constexpr capstan_attention kBare = without_forward();
constexpr capstan_component bare() {
  capstan_component component = kBad;
  component.type = CAPSTAN_LITERAL("BadBare");
  component.vtable = &kBare;
  return component;
}
constexpr capstan_component kBadBare = bare();

}  // namespace

CAPSTAN_PLUGIN(&kBad, &kBadBare)
