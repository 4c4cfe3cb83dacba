// The operator capstan::linear_cross_entropy, which models call by capstan/linear_cross_entropy.hpp. One operator, so
// that a head's weight stays in memory through all of its chunks.

#include "capstan/linear_cross_entropy.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/addmv.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <algorithm>

#include "core/loss/loss_chunk.hpp"
#include "core/precision/autocast.hpp"

namespace capstan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// One head's call: hidden [rows, width], weight [vocabulary, width], labels [rows].
struct HeadCall {
  at::Tensor hidden, weight, labels;
  LinearCrossEntropyOptions options;

  /// The dtype of probabilities, and of sums over chunks.
  at::ScalarType wide() const { return hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }
  at::TensorOptions wide_options() const { return hidden.options().dtype(wide()); }
  std::int64_t rows() const { return hidden.size(0); }
  at::Tensor ignored() const { return labels.eq(options.ignore_index); }
  /// 1 for rows that count, 0 for others.
  at::Tensor counts() const { return labels.ne(options.ignore_index).to(wide()); }
  /// Labels by which elements may be taken: 0 where a row is ignored.
  at::Tensor places() const { return labels.masked_fill(ignored(), 0).unsqueeze(1); }
  HeadCall chunk(std::int64_t first, std::int64_t count) const {
    return {hidden.narrow(0, first, count), weight, labels.narrow(0, first, count), options};
  }
};

/// The loss of a call, and on demand its gradients, a chunk of rows after the other.
///
/// Gradients are those of the sum of losses before the division of logits, in float32: a mean's would vanish in float16
/// where the loss is scaled only later.
class ChunkedHead {
 public:
  struct Wanted {
    bool hidden = false, weight = false, bias = false;
    bool any() const { return hidden || weight || bias; }
  };

  ChunkedHead(const HeadCall& call, Wanted wanted) : call_(call), wanted_(wanted) {
    losses_ = at::empty({call.rows()}, call.wide_options());
    if (wanted.hidden) hidden_gradient = at::empty(call.hidden.sizes(), call.wide_options());
    if (wanted.weight) weight_gradient = at::empty(call.weight.sizes(), call.wide_options());
    if (wanted.bias) bias_gradient = at::zeros({call.weight.size(0)}, call.wide_options());
  }

  void run(std::int64_t chunk_rows) {
    for (std::int64_t first = 0; first < call_.rows(); first += chunk_rows) {
      run_chunk(first, std::min(chunk_rows, call_.rows() - first));
    }
  }

  /// The mean over rows, by the operator that adds the rows of all logits up: with its order of additions.
  at::Tensor mean_loss() const {
    constexpr std::int64_t kIgnored = -100;
    return at::nll_loss(losses_.neg().unsqueeze(1), call_.ignored().to(at::kLong).mul(kIgnored), {},
                        at::Reduction::Mean, kIgnored);
  }

  at::Tensor hidden_gradient, weight_gradient, bias_gradient;  // undefined: not wanted

 private:
  void run_chunk(std::int64_t first, std::int64_t count) {
    const HeadCall chunk = call_.chunk(first, count);
    at::Tensor logits = sdk::head_logits(chunk.hidden, chunk.weight, chunk.options).to(chunk.wide());
    at::Tensor numbers = at::log_softmax(logits, -1);
    losses_.narrow(0, first, count)
        .copy_(at::nll_loss(numbers, chunk.labels, {}, at::Reduction::None, chunk.options.ignore_index));
    if (!wanted_.any()) return;
    if (!chunk.options.softcap) logits.reset();
    // From log-probabilities to the loss's derivative by logits: softmax(logits) - 1 at the label.
    numbers.exp_();
    const at::Tensor places = chunk.places();
    numbers.scatter_(1, places, numbers.gather(1, places).sub_(1));
    if (chunk.options.softcap) numbers.mul_(logits.div_(*chunk.options.softcap).square_().neg_().add_(1));
    logits.reset();
    add_gradients(chunk, first, count, numbers);
  }

  /// Ignored rows are left out of the narrow operands, which is less work than zeroing rows of the vocabulary's width.
  void add_gradients(const HeadCall& chunk, std::int64_t first, std::int64_t count, const at::Tensor& by_logits) {
    const at::Tensor counts = chunk.counts();
    if (wanted_.bias) bias_gradient.addmv_(by_logits.t(), counts);
    const at::Tensor narrow = by_logits.to(chunk.hidden.scalar_type());
    if (wanted_.hidden) {
      at::Tensor gradient = hidden_gradient.narrow(0, first, count);
      if (narrow.scalar_type() == gradient.scalar_type()) {
        at::mm_out(gradient, narrow, chunk.weight);
      } else {
        gradient.copy_(narrow.mm(chunk.weight));
      }
      gradient.mul_(counts.unsqueeze(1));
    }
    if (!wanted_.weight) return;
    const at::Tensor hidden = chunk.hidden.mul(counts.unsqueeze(1).to(chunk.hidden.scalar_type()));
    if (narrow.scalar_type() != weight_gradient.scalar_type()) {
      if (first == 0) {
        weight_gradient.copy_(narrow.t().mm(hidden));
      } else {
        weight_gradient.add_(narrow.t().mm(hidden));
      }
    } else if (first == 0) {
      at::mm_out(weight_gradient, narrow.t(), hidden);
    } else {
      at::addmm_out(weight_gradient, weight_gradient, narrow.t(), hidden);
    }
  }

  const HeadCall& call_;
  Wanted wanted_;
  at::Tensor losses_;  // -log p of each row's label; 0 where the row is ignored
};

/// The gradients of `loss_gradient` times the mean loss by hidden, weight and bias, with a graph of their own.
variable_list differentiable_gradients(const HeadCall& call, const at::Tensor& loss_gradient) {
  const at::Tensor logits = sdk::head_logits(call.hidden, call.weight, call.options).to(call.wide());
  const at::Tensor counts = call.counts().unsqueeze(1);
  at::Tensor gradient = at::softmax(logits, -1).mul(counts).scatter_add(1, call.places(), counts.neg());
  gradient = gradient.mul(loss_gradient.div(counts.sum().clamp_min(1).mul(call.options.divisor)));
  if (call.options.softcap) gradient = gradient.mul(logits.div(*call.options.softcap).square().neg().add(1));
  const at::Tensor narrow = gradient.to(call.hidden.scalar_type());
  return {narrow.mm(call.weight), narrow.t().mm(call.hidden), gradient.sum(0)};
}

struct LinearCrossEntropy final : torch::autograd::Function<LinearCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const at::Tensor& labels,
                            const LinearCrossEntropyOptions& options, std::int64_t chunk_rows) {
    const HeadCall call{hidden, weight, labels, options};
    ChunkedHead head(call, {hidden.requires_grad(), weight.requires_grad(), bias && bias->requires_grad()});
    head.run(chunk_rows);
    const at::Tensor count = call.counts().sum().clamp_min(1);
    context->save_for_backward({hidden, weight, bias.value_or(at::Tensor()), labels, head.hidden_gradient,
                                head.weight_gradient, head.bias_gradient, count});
    context->saved_data["softcap"] = options.softcap;
    context->saved_data["divisor"] = options.divisor;
    context->saved_data["ignore_index"] = options.ignore_index;
    return head.mean_loss();
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &hidden = saved[0], &weight = saved[1], &bias = saved[2], &labels = saved[3];
    variable_list result(kArguments);
    if (!gradients[0].defined()) return result;
    const double divisor = context->saved_data["divisor"].toDouble();
    if (at::GradMode::is_enabled()) {
      const HeadCall call{hidden,
                          weight,
                          labels,
                          {bias, context->saved_data["softcap"].toOptional<double>(), divisor,
                           context->saved_data["ignore_index"].toInt()}};
      const variable_list again = differentiable_gradients(call, gradients[0]);
      for (std::size_t i = 0; i < again.size(); ++i) {
        if (saved[i].defined() && saved[i].requires_grad()) result[i] = again[i].to(saved[i].scalar_type());
      }
      return result;
    }
    // A graph that goes on may run once more, from what is saved.
    const bool last = !torch::autograd::get_current_graph_task_keep_graph();
    const at::Tensor factor = gradients[0].div(saved[kCount].mul(divisor));
    for (std::size_t i = 0; i < 3; ++i) {
      const at::Tensor& sum = saved[kSums + i];
      if (!sum.defined()) continue;
      result[i] = (last ? sum.mul_(factor) : sum.mul(factor)).to(saved[i].scalar_type());
    }
    return result;
  }

 private:
  static constexpr std::size_t kArguments = 6, kSums = 4, kCount = 7;
};

/// Throws c10::Error for arguments that do not fit together.
void check_head(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& labels,
                std::optional<double> softcap, double divisor) {
  constexpr const char* kName = "capstan::linear_cross_entropy: ";
  const bool shapes = hidden.dim() >= 1 && weight.dim() == 2 && hidden.size(-1) == weight.size(1) &&
                      labels.sizes() == hidden.sizes().slice(0, static_cast<std::size_t>(hidden.dim() - 1)) &&
                      (!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)));
  TORCH_CHECK_VALUE(shapes, kName, "expected hidden [..., width], weight [vocabulary, width], bias [vocabulary] and ",
                    "labels of hidden's leading dimensions, got hidden ", hidden.sizes(), ", weight ", weight.sizes(),
                    bias.defined() ? c10::str(", bias ", bias.sizes()) : std::string(), " and labels ", labels.sizes(),
                    ".");
  TORCH_CHECK_TYPE(hidden.is_floating_point() && labels.scalar_type() == at::kLong, kName,
                   "expected hidden of a floating-point dtype and labels of int64, got ", hidden.scalar_type(), " and ",
                   labels.scalar_type(), ".");
  TORCH_CHECK_VALUE(!softcap || *softcap > 0, kName, "softcap must be above 0, got ", softcap.value_or(0), ".");
  TORCH_CHECK_VALUE(divisor != 0, kName, "divisor must not be 0.");
}

/// As LibTorch's linear takes it under autocast.
at::Tensor autocast(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_meta() || tensor.scalar_type() == at::kDouble) return tensor;
  const auto dtype = autocast_dtype(tensor.device().type());
  return dtype ? tensor.to(*dtype) : tensor;
}

at::Tensor linear_cross_entropy_operator(const at::Tensor& hidden, const at::Tensor& weight,
                                         const std::optional<at::Tensor>& bias, const at::Tensor& labels,
                                         std::optional<double> softcap, double divisor, std::int64_t ignore_index) {
  const at::Tensor given_bias = bias.value_or(at::Tensor());
  check_head(hidden, weight, given_bias, labels, softcap, divisor);
  const LinearCrossEntropyOptions options{autocast(given_bias), softcap, divisor, ignore_index};
  const HeadCall call{autocast(hidden).reshape({-1, hidden.size(-1)}), autocast(weight), labels.reshape(-1), options};
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);

  const auto row_bytes =
      std::max<std::int64_t>(weight.size(0) * static_cast<std::int64_t>(c10::elementSize(call.wide())), 1);
  const std::int64_t chunk_rows = std::max<std::int64_t>(loss_chunk_bytes() / row_bytes, 1);
  if (loss_chunk_bytes() == 0 || call.rows() <= chunk_rows) {
    return sdk::plain_linear_cross_entropy(call.hidden, call.weight, call.labels, options);
  }
  const bool differentiates = at::GradMode::is_enabled() && (call.hidden.requires_grad() || weight.requires_grad() ||
                                                             (options.bias.defined() && options.bias.requires_grad()));
  if (!differentiates) {
    ChunkedHead head(call, {});
    head.run(chunk_rows);
    return head.mean_loss();
  }
  return LinearCrossEntropy::apply(call.hidden, call.weight,
                                   options.bias.defined() ? std::optional(options.bias) : std::nullopt, call.labels,
                                   options, chunk_rows);
}

}  // namespace
}  // namespace capstan

TORCH_LIBRARY_FRAGMENT(capstan, m) {
  m.def(
      "linear_cross_entropy(Tensor hidden, Tensor weight, Tensor? bias, Tensor labels, float? softcap=None, "
      "float divisor=1.0, int ignore_index=-100) -> Tensor",
      &capstan::linear_cross_entropy_operator);
}
