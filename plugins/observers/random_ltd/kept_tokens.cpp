#include "kept_tokens.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <sstream>
#include <utility>
#include <vector>

#include "capstan/sdk/config_mistake.hpp"

namespace capstan::random_ltd {
namespace {

namespace autograd = torch::autograd;
using autograd::variable_list;

constexpr const char* kMaskName = "data_efficiency.data_routing.random_ltd.model_mask_name";

bool needs_gradient(const at::Tensor& tensor) { return at::GradMode::is_enabled() && tensor.requires_grad(); }

bool is_ours_alone(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1 && tensor.is_contiguous();
}

/// Backward of gathering. Its inputs are the gradient of the gathered tokens and, straight from ScatterBackward, that
/// of all tokens past the layer, which it overwrites where tokens were kept: nothing is filled with zeros, nothing
/// added.
struct GatherBackward final : autograd::Node {
  GatherBackward(const at::Tensor& hidden, at::Tensor rows)
      : Node(autograd::collect_next_edges(hidden)),
        sizes_(hidden.sizes().vec()),
        options_(hidden.options()),
        rows_(std::move(rows)) {}

  variable_list apply(variable_list&& gradients) override {
    at::Tensor through = std::move(gradients[0]), past = std::move(gradients[1]);
    if (!through.defined() && !past.defined()) return {at::Tensor()};
    if (!past.defined()) past = at::zeros(sizes_, options_);
    if (at::GradMode::is_enabled()) {  // a graph of this backward is wanted
      const at::Tensor flat = past.flatten(0, 1);
      return {(through.defined() ? flat.index_copy(0, rows_, through.flatten(0, 1)) : flat.index_fill(0, rows_, 0))
                  .view(sizes_)};
    }
    if (!is_ours_alone(past)) past = past.clone(at::MemoryFormat::Contiguous);
    at::Tensor flat = past.flatten(0, 1);
    if (through.defined()) {
      flat.index_copy_(0, rows_, through.flatten(0, 1));
    } else {
      flat.index_fill_(0, rows_, 0);
    }
    return {std::move(past)};
  }
  std::string name() const override { return "RandomLtdGatherBackward"; }

 private:
  std::vector<std::int64_t> sizes_;
  at::TensorOptions options_;
  at::Tensor rows_;
};

/// Backward of scattering: the rows of the kept tokens to the layer, and all of it to GatherBackward.
struct ScatterBackward final : autograd::Node {
  ScatterBackward(autograd::edge_list next, at::Tensor rows, at::IntArrayRef kept)
      : Node(std::move(next)), rows_(std::move(rows)), kept_(kept.vec()) {}

  variable_list apply(variable_list&& gradients) override {
    at::Tensor whole = std::move(gradients[0]);
    if (!whole.defined()) return {at::Tensor(), at::Tensor()};
    at::Tensor through = whole.flatten(0, 1).index_select(0, rows_).view(kept_);
    return {std::move(through), std::move(whole)};
  }
  std::string name() const override { return "RandomLtdScatterBackward"; }

 private:
  at::Tensor rows_;
  std::vector<std::int64_t> kept_;
};

/// The places of kept tokens among the rows of hidden.flatten(0, 1), in the order of the gathered tokens.
at::Tensor flat_rows(const at::Tensor& hidden, const at::Tensor& positions, Order order) {
  const std::int64_t samples = positions.size(0);
  const at::Tensor sample = at::arange(samples, positions.options()).unsqueeze(1);
  if (order == Order::kBatchSeq) return (sample * hidden.size(1) + positions).flatten();
  return (positions * samples + sample).t().contiguous().flatten();
}

template <class Shape>
std::string shown(const Shape& shape) {
  std::ostringstream out;
  out << shape;
  return out.str();
}

/// Throws unless the last two dimensions are the tokens, or of one element.
void check_mask(const at::Tensor& mask, std::int64_t tokens, std::int64_t least_dims) {
  const auto fits = [&](std::int64_t dim) { return mask.size(dim) == tokens || mask.size(dim) == 1; };
  if (mask.dim() >= least_dims && fits(-2) && fits(-1)) return;
  throw sdk::ConfigMistake(kMaskName, "the mask is " + shown(mask.sizes()) + "; its last two dimensions must be the " +
                                          std::to_string(tokens) + " tokens, or 1" +
                                          (least_dims > 2 ? ", and its first the samples, or 1." : "."));
}

}  // namespace

KeptTokens::KeptTokens(const at::Tensor& hidden, const at::Tensor& positions, Order order)
    : hidden_(hidden), rows_(flat_rows(hidden, positions, order)) {
  std::vector<std::int64_t> kept = hidden.sizes().vec();
  kept[order == Order::kBatchSeq ? 1 : 0] = positions.size(1);
  {
    const at::NoGradGuard no_grad;
    gathered_ = hidden.flatten(0, 1).index_select(0, rows_).view(kept);
  }
  if (!needs_gradient(hidden)) return;
  gathering_ = std::make_shared<GatherBackward>(hidden, rows_);
  autograd::create_gradient_edge(gathered_, gathering_);
  gathering_->add_input_metadata(hidden);
}

at::Tensor KeptTokens::scatter(const at::Tensor& output) const {
  if (output.sizes() != gathered_.sizes()) {
    throw sdk::Error("it was given hidden states of " + shown(gathered_.sizes()) + " and gave " +
                     shown(output.sizes()) + ": random-LTD puts what a layer gives in the place of what it was given.");
  }
  const at::Tensor values = output.to(hidden_.scalar_type());
  at::Tensor out;
  {
    const at::NoGradGuard no_grad;
    out = hidden_.clone(at::MemoryFormat::Contiguous);
    out.flatten(0, 1).index_copy_(0, rows_, values.flatten(0, 1));
  }
  const bool trained = needs_gradient(values);
  if (!trained && !gathering_) return out;
  autograd::edge_list next = {trained ? autograd::impl::gradient_edge(values) : autograd::Edge(),
                              gathering_ ? autograd::Edge(gathering_, 1) : autograd::Edge()};
  autograd::create_gradient_edge(out, std::make_shared<ScatterBackward>(std::move(next), rows_, values.sizes()));
  return out;
}

at::Tensor corner(const at::Tensor& mask, std::int64_t tokens, std::int64_t keep) {
  check_mask(mask, tokens, 2);
  at::Tensor out = mask;
  for (const std::int64_t dim : {-2, -1}) {
    if (out.size(dim) == tokens) out = out.narrow(dim, 0, keep);
  }
  return out;
}

at::Tensor rows_and_columns(const at::Tensor& mask, const at::Tensor& positions, std::int64_t tokens) {
  check_mask(mask, tokens, 3);
  const std::int64_t samples = positions.size(0);
  if (mask.size(0) != 1 && mask.size(0) != samples) {
    throw sdk::ConfigMistake(kMaskName, "the mask is " + shown(mask.sizes()) + "; its first dimension must be the " +
                                            std::to_string(samples) + " samples, or 1.");
  }
  std::vector<at::Tensor> cut;
  for (std::int64_t i = 0; i < samples; ++i) {
    at::Tensor one = mask.select(0, mask.size(0) == 1 ? 0 : i);
    for (const std::int64_t dim : {-2, -1}) {
      if (one.size(dim) == tokens) one = one.index_select(dim, positions.select(0, i));
    }
    cut.push_back(std::move(one));
  }
  return at::stack(cut);
}

}  // namespace capstan::random_ltd
