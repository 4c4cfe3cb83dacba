#include "core/attention/sparse_attention.hpp"

#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cmath>
#include <string_view>
#include <tuple>

#include "core/errors.hpp"
#include "core/precision/autocast.hpp"
#include "core/registry/config_mistakes.hpp"
#include "core/schema/value.hpp"

namespace capstan {
namespace {

/// Dense calls that a notice names one by one.
constexpr std::size_t kNamed = 3;

at::Tensor tensor_or_none(const c10::IValue& value) { return value.isTensor() ? value.toTensor() : at::Tensor(); }

/// A mask as kernels know it: bool where it leaves scores out.
at::Tensor term_of(const at::Tensor& mask, bool multiplies) {
  return multiplies && mask.scalar_type() != at::kBool ? mask.ne(0) : mask;
}

/// [batch, heads, tokens, width], whatever leading dimensions there are.
at::Tensor four_dims(const at::Tensor& tensor) {
  if (tensor.dim() == 4) return tensor;
  if (tensor.dim() == 2) return tensor.unsqueeze(0).unsqueeze(0);
  if (tensor.dim() == 3) return tensor.unsqueeze(1);
  return tensor.flatten(0, -4);
}

}  // namespace

struct SparseAttention::Call {
  at::Tensor q, k, v;
  AttentionTerms terms;
  std::optional<double> scale;
  double dropout = 0;
  bool causal = false, grouped = false;
};

SparseAttention::SparseAttention(Component layouts, Component kernel, std::string where, std::uint64_t seed)
    : layouts_(std::move(layouts)),
      kernel_(std::make_shared<const Component>(std::move(kernel))),
      where_(std::move(where)),
      seed_(seed) {}

std::optional<SparseAttention::Call> SparseAttention::call_of(const c10::OperatorHandle& op, const OperatorStack& stack,
                                                              std::size_t argument_count) {
  const std::string_view name = op.schema().name();
  const bool ours = name == "capstan::attention";
  if (!ours && name != "aten::scaled_dot_product_attention") return std::nullopt;
  const auto argument = [&](std::size_t i) -> const c10::IValue& { return stack[stack.size() - argument_count + i]; };
  Call call{argument(0).toTensor(), argument(1).toTensor(), argument(2).toTensor(), {}, {}, 0, false, false};
  const auto add = [&](at::Tensor mask, bool multiplies) {
    if (mask.defined()) call.terms.push_back(term_of(mask, multiplies));
  };
  if (ours) {
    // (q, k, v, key_padding_mask, its mode, attn_mask, its mode, relative_position, scale, is_causal)
    at::Tensor padding = tensor_or_none(argument(3));
    if (padding.defined()) padding = padding.unsqueeze(-2).unsqueeze(-2);
    add(padding, argument(4).toBool());
    add(tensor_or_none(argument(5)), argument(6).toBool());
    add(tensor_or_none(argument(7)), false);
    call.scale = argument(8).toOptional<double>();
    call.causal = argument(9).toBool();
  } else {
    // (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    add(tensor_or_none(argument(3)), false);
    call.dropout = argument(4).toDouble();
    call.causal = argument(5).toBool();
    call.scale = argument(6).toOptional<double>();
    call.grouped = argument(7).toBool();
  }
  return call;
}

std::string SparseAttention::dense_reason(const Call& call) const {
  const at::Tensor &q = call.q, &k = call.k, &v = call.v;
  if (call.dropout > 0) return "has dropout " + shown(Json(call.dropout));
  if (q.dim() < 2 || k.dim() != q.dim() || v.dim() != q.dim()) return "has tensors of different dimensions";
  if (q.size(-2) != k.size(-2)) {
    return "is of " + std::to_string(q.size(-2)) + " queries and " + std::to_string(k.size(-2)) + " keys";
  }
  if (v.size(-2) != k.size(-2) || q.size(-1) != k.size(-1)) return "has keys that do not fit";
  const auto dtype = q.scalar_type();
  if (!autocast_dtype(q.device().type()) && ((dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf) ||
                                             k.scalar_type() != dtype || v.scalar_type() != dtype)) {
    return std::string("is of ") + c10::toString(dtype);
  }
  if (!kernel_->manifest().runs_on(c10::DeviceTypeName(q.device().type(), /*lower_case=*/true))) {
    return "is on " + q.device().str();
  }
  const bool same_heads = q.dim() < 3 || (k.size(-3) == q.size(-3) && v.size(-3) == q.size(-3));
  const bool grouped =
      call.grouped && q.dim() > 2 && k.size(-3) > 0 && q.size(-3) % k.size(-3) == 0 && v.size(-3) == k.size(-3);
  if (!same_heads && !grouped) return "has fewer heads of keys than of queries";
  for (std::int64_t i = 0; i + 3 < q.dim(); ++i) {
    if (k.size(i) != q.size(i) || v.size(i) != q.size(i)) return "repeats keys over a batch";
  }
  std::vector<std::int64_t> scores = q.sizes().vec();
  scores.back() = q.size(-2);
  for (const at::Tensor& term : call.terms) {
    if (!at::is_expandable_to(term.sizes(), scores)) return "has a mask that does not fit";
  }
  return "";
}

std::shared_ptr<const PreparedLayout> SparseAttention::layout_for(std::int64_t heads, std::int64_t tokens,
                                                                  bool causal) {
  const std::lock_guard lock(mutex_);
  auto& prepared = prepared_[{heads, tokens, causal}];
  if (!prepared) {
    BlockLayout layout = mark_config_mistakes(  // the model called
        [&] { return make_layout(layouts_, where_, heads, tokens, causal, seed_); });
    halved_ |= layout.drop_later() && !layout.says_so;
    prepared = std::make_shared<const PreparedLayout>(kernel_, layout);
  }
  return prepared;
}

at::Tensor SparseAttention::attend(const Call& call) {
  at::Tensor q = call.q, k = call.k, v = call.v;
  const double scale = call.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(-1))));
  if (const auto dtype = autocast_dtype(q.device().type())) {
    for (at::Tensor* one : {&q, &k, &v}) {
      if (one->scalar_type() != at::kDouble) *one = one->to(*dtype);
    }
  }
  if (q.dim() > 2 && k.size(-3) != q.size(-3)) {
    const std::int64_t times = q.size(-3) / k.size(-3);
    k = k.repeat_interleave(times, -3);
    v = v.repeat_interleave(times, -3);
  }
  AttentionTerms terms;
  for (const at::Tensor& term : call.terms) {
    terms.push_back(q.dim() == 3 && term.dim() == 3 ? term.unsqueeze(1)
                    : q.dim() > 4 && term.dim() > 4 ? term.flatten(0, -4)
                                                    : term);
  }
  const at::Tensor all = four_dims(q);
  auto layout = layout_for(all.size(1), all.size(2), call.causal);
  at::Tensor out = block_sparse_attention(all, four_dims(k), four_dims(v), terms, scale, std::move(layout));
  if (q.dim() == 4) return out;
  std::vector<std::int64_t> sizes = q.sizes().vec();
  sizes.back() = v.size(-1);
  return out.reshape(sizes);
}

bool SparseAttention::stands_in(const c10::OperatorHandle& op, OperatorStack& stack, std::size_t argument_count) {
  const std::optional<Call> call = call_of(op, stack, argument_count);
  if (!call) return false;
  const std::string reason = dense_reason(*call);
  if (counting_) {
    ++calls_;
    if (!reason.empty()) dense_.push_back("call " + std::to_string(calls_) + " " + reason);
  }
  if (!reason.empty()) return false;
  at::Tensor out = attend(*call);
  stack.resize(stack.size() - argument_count);
  stack.emplace_back(std::move(out));
  return true;
}

void SparseAttention::begin_forward() {
  counting_ = !told_;
  calls_ = 0;
  dense_.clear();
}

std::optional<std::string> SparseAttention::end_forward() {
  if (!counting_) return std::nullopt;
  counting_ = false;
  told_ = true;
  std::string reasons;
  for (std::size_t i = 0; i < dense_.size() && i < kNamed; ++i) reasons += (i == 0 ? "" : ", ") + dense_[i];
  if (dense_.size() > kNamed) reasons += ", and " + std::to_string(dense_.size() - kNamed) + " more";
  if (calls_ == 0) {
    throw RuntimeFault(where_ +
                       ": the model calls no scaled_dot_product_attention, so there is nothing to make sparse. A model "
                       "that computes attention by products of matrices, as torch::nn::MultiheadAttention does, calls "
                       "capstan::attention(q, k, v) of capstan/attention.hpp in their place.");
  }
  const auto all = static_cast<std::int64_t>(dense_.size());
  if (all == calls_) {
    throw RuntimeFault(where_ + ": none of the model's " + std::to_string(calls_) +
                       " calls of attention can be sparse: " + reasons + ".");
  }
  std::string text;
  if (all > 0) {
    text = std::to_string(all) + " of " + std::to_string(calls_) + " calls of attention stay dense: " + reasons + ".";
  }
  if (halved_) {
    text += std::string(text.empty() ? "" : " ") +
            "The model's calls are causal, and stay so: what the layout sets above the diagonal is left out.";
  }
  return text.empty() ? std::nullopt : std::optional(where_ + ": " + text);
}

}  // namespace capstan
