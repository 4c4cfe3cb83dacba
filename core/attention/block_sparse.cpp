#include "core/attention/block_sparse.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <optional>
#include <utility>

#include "core/errors.hpp"
#include "core/memory/tensor_handle.hpp"
#include "core/registry/plugin_call.hpp"

namespace capstan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::size_t kMostTerms = 3;

/// What a call has beside its tensors.
struct CallFacts {
  std::shared_ptr<const PreparedLayout> layout;
  double scale = 1;
};

const capstan_attention* table_of(const PreparedLayout& layout) { return layout.kernel().vtable<capstan_attention>(); }
std::string name_of(const Component& kernel) { return "attention '" + kernel.manifest().type + "'"; }

at::Tensor with_rows(const at::Tensor& tensor) {
  return tensor.size(-1) == 1 || tensor.stride(-1) == 1 ? tensor : tensor.contiguous();
}

/// A tensor of the shape [batch, heads, tokens, width], with the heads of a token side by side.
at::Tensor empty_heads(const at::Tensor& like, std::int64_t width) {
  return at::empty({like.size(0), like.size(2), like.size(1), width}, like.options()).transpose(1, 2);
}

std::vector<std::int64_t> score_shape(const at::Tensor& q) { return {q.size(0), q.size(1), q.size(2), q.size(2)}; }

/// The structs of a call, as long as it lasts.
class RawCall {
 public:
  RawCall(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionTerms& terms, double scale)
      : q_(with_rows(q)), k_(with_rows(k)), v_(with_rows(v)) {
    raw_.struct_size = sizeof raw_;
    raw_.scale = scale;
    raw_.q = handle_of(q_);
    raw_.k = handle_of(k_);
    raw_.v = handle_of(v_);
    for (const at::Tensor& term : terms) {
      const bool mask = term.scalar_type() == at::kBool;
      values_.at(count_) = (mask ? term : term.to(at::kFloat)).expand(score_shape(q));
      capstan_attention_term& to = terms_.at(count_);
      to.struct_size = sizeof to;
      to.mask = mask;
      to.values = handle_of(values_.at(count_));
      pointers_.at(count_++) = &to;
    }
    raw_.terms = pointers_.data();
    raw_.term_count = count_;
  }
  RawCall(const RawCall&) = delete;

  void want_gradient(std::size_t term) {
    gradients_.at(term) = at::zeros(score_shape(q_), q_.options().dtype(at::kFloat));
    terms_.at(term).grad = handle_of(gradients_.at(term));
  }
  const at::Tensor& gradient(std::size_t term) const { return gradients_.at(term); }
  const capstan_attention_call* operator&() const { return &raw_; }

 private:
  at::Tensor q_, k_, v_;
  std::array<at::Tensor, kMostTerms> values_, gradients_;
  std::array<capstan_attention_term, kMostTerms> terms_{};
  std::array<const capstan_attention_term*, kMostTerms> pointers_{};
  std::size_t count_ = 0;
  capstan_attention_call raw_{};
};

/// Shows profilers a call by a name of its own: q, k, v and how many scores it computes.
class Recorded {
 public:
  Recorded(const char* name, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scores) {
    if (!record_.isActive()) return;
    inputs_ = {q, k, v, scores * static_cast<double>(q.size(0))};
    record_.before(name, c10::ArrayRef<const c10::IValue>(inputs_.data(), inputs_.size()), -1);
  }

 private:
  std::vector<c10::IValue> inputs_;
  at::RecordFunction record_{at::RecordScope::FUNCTION};
};

struct BlockSparse final : torch::autograd::Function<BlockSparse> {
  using Term = std::optional<at::Tensor>;

  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const Term& term0, const Term& term1, const Term& term2, const CallFacts& facts) {
    const AttentionTerms terms = given({term0, term1, term2});
    const PreparedLayout& layout = *facts.layout;
    const Recorded recorded("capstan::block_sparse_attention", q, k, v, layout.scores());
    at::Tensor out = empty_heads(q, v.size(-1));
    const at::Tensor log_sum_exp = at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
    const RawCall raw(q, k, v, terms, facts.scale);
    call_plugin(layout.kernel().function("forward"), name_of(layout.kernel()), [&](capstan_error* error) {
      return table_of(layout)->forward(layout.kernel().self(), layout.plan(), &raw, handle_of(out),
                                       handle_of(log_sum_exp), error);
    });
    variable_list saved = {q, k, v, out, log_sum_exp};
    saved.insert(saved.end(), terms.begin(), terms.end());
    context->save_for_backward(std::move(saved));
    context->saved_data["facts"] = c10::IValue::make_capsule(c10::make_intrusive<Held>(facts));
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (at::GradMode::is_enabled()) {
      throw RuntimeFault(
          "sparse attention has no second derivatives: a backward with create_graph went through it. Leave the section "
          "sparse_attention out.");
    }
    const auto held = context->saved_data["facts"].toCapsule();
    const CallFacts& facts = static_cast<const Held&>(*held).facts;
    const PreparedLayout& layout = *facts.layout;
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &log_sum_exp = saved[4];
    const AttentionTerms terms(saved.begin() + 5, saved.end());
    variable_list result(3 + kMostTerms + 1);
    if (!gradients[0].defined()) return result;
    const Recorded recorded("capstan::block_sparse_attention_backward", q, k, v, layout.scores());
    const at::Tensor gradient = with_rows(gradients[0].to(q.scalar_type()));
    RawCall raw(q, k, v, terms, facts.scale);
    for (std::size_t i = 0; i < terms.size(); ++i) {
      if (context->needs_input_grad(3 + i)) raw.want_gradient(i);
    }
    for (std::size_t i = 0; i < 3; ++i) result[i] = empty_heads(saved[i], saved[i].size(-1));
    call_plugin(layout.kernel().function("backward"), name_of(layout.kernel()), [&](capstan_error* error) {
      return table_of(layout)->backward(layout.kernel().self(), layout.plan(), &raw, handle_of(out),
                                        handle_of(log_sum_exp), handle_of(gradient), handle_of(result[0]),
                                        handle_of(result[1]), handle_of(result[2]), error);
    });
    for (std::size_t i = 0; i < terms.size(); ++i) {
      if (!raw.gradient(i).defined()) continue;
      // The sum over what the term was repeated along.
      result[3 + i] = raw.gradient(i).sum_to_size(terms[i].sizes()).to(terms[i].scalar_type());
    }
    return result;
  }

 private:
  struct Held final : torch::CustomClassHolder {
    explicit Held(CallFacts given) : facts(std::move(given)) {}
    CallFacts facts;
  };
  static AttentionTerms given(std::initializer_list<Term> all) {
    AttentionTerms terms;
    for (const Term& term : all) {
      if (term) terms.push_back(*term);
    }
    return terms;
  }
};

}  // namespace

PreparedLayout::PreparedLayout(std::shared_ptr<const Component> kernel, const BlockLayout& layout)
    : kernel_(std::move(kernel)), scores_(layout.scores()) {
  const auto* table = kernel_->vtable<capstan_attention>();
  if (!CAPSTAN_HAS(table, prepare) || !CAPSTAN_HAS(table, release) || !CAPSTAN_HAS(table, forward) ||
      !CAPSTAN_HAS(table, backward)) {
    throw ConfigError("capstan.attention.kernel: " + name_of(*kernel_) +
                      " computes nothing: it has layouts. Name it in capstan.attention.type.");
  }
  capstan_attention_layout raw{};
  raw.struct_size = sizeof raw;
  raw.heads = layout.heads;
  raw.block = layout.block;
  raw.blocks = layout.blocks;
  raw.causal = layout.causal;
  raw.cells = layout.cells.data();
  call_plugin(kernel_->function("prepare"), name_of(*kernel_),
              [&](capstan_error* error) { return table->prepare(kernel_->self(), &raw, &plan_, error); });
}

PreparedLayout::~PreparedLayout() { kernel_->vtable<capstan_attention>()->release(kernel_->self(), plan_); }

at::Tensor block_sparse_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionTerms& terms, double scale,
                                  std::shared_ptr<const PreparedLayout> layout) {
  const auto term = [&](std::size_t i) { return i < terms.size() ? std::optional(terms[i]) : std::nullopt; };
  return BlockSparse::apply(q, k, v, term(0), term(1), term(2), CallFacts{std::move(layout), scale});
}

}  // namespace capstan
