#include "core/components/curvature.hpp"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "core/errors.hpp"
#include "core/memory/interceptor.hpp"

namespace capstan {
namespace {

namespace autograd = torch::autograd;

/// The largest scale of a loss that 16-bit values hold.
constexpr double kMostScale = 32768;

/// Attention by products of matrices and a softmax: the fused kernels have no second derivative.
class UnfusedAttention {
 public:
  UnfusedAttention() {
    at::Context& context = at::globalContext();
    flash_ = context.userEnabledFlashSDP();
    efficient_ = context.userEnabledMemEfficientSDP();
    cudnn_ = context.userEnabledCuDNNSDP();
    math_ = context.userEnabledMathSDP();
    context.setSDPUseMath(true);
    context.setSDPUseFlash(false);
    context.setSDPUseMemEfficient(false);
    context.setSDPUseCuDNN(false);
  }
  ~UnfusedAttention() {
    at::Context& context = at::globalContext();
    context.setSDPUseFlash(flash_);
    context.setSDPUseMemEfficient(efficient_);
    context.setSDPUseCuDNN(cudnn_);
    context.setSDPUseMath(math_);
  }
  UnfusedAttention(const UnfusedAttention&) = delete;

 private:
  bool flash_, efficient_, cudnn_, math_;
};

/// Notes the name of a function whose backward breaks the graph of gradients.
class BreakNote final : public autograd::FunctionPostHook {
 public:
  BreakNote(std::string name, std::shared_ptr<std::string> broken)
      : name_(std::move(name)), broken_(std::move(broken)) {}
  autograd::variable_list operator()(const autograd::variable_list& outputs,
                                     const autograd::variable_list& inputs) override {
    const auto has_graph = [](const autograd::variable_list& list) {
      return std::any_of(list.begin(), list.end(),
                         [](const at::Tensor& t) { return t.defined() && t.requires_grad(); });
    };
    const bool gives = std::any_of(outputs.begin(), outputs.end(), [](const at::Tensor& t) { return t.defined(); });
    if (broken_->empty() && gives && has_graph(inputs) && !has_graph(outputs)) *broken_ = name_;
    return outputs;
  }

 private:
  std::string name_;
  std::shared_ptr<std::string> broken_;
};

/// Functions that are not LibTorch's own have a type's name in C++. Their backward may use kernels that autograd does
/// not see, and then a second derivative would lack their part without a word.
bool is_foreign(const std::string& name) {
  if (name.find("::") == std::string::npos) return false;
  return !name.starts_with("torch::autograd::") || name.starts_with("torch::autograd::CppNode<");
}

/// Watches all such functions of a graph; the text becomes the name of the first that breaks the chain.
std::shared_ptr<std::string> watch_foreign_functions(const at::Tensor& loss) {
  auto broken = std::make_shared<std::string>();
  std::vector<autograd::Node*> open = {loss.grad_fn().get()};
  std::unordered_set<autograd::Node*> seen(open.begin(), open.end());
  while (!open.empty()) {
    autograd::Node* node = open.back();
    open.pop_back();
    if (const std::string name = node->name(); is_foreign(name)) {
      node->add_post_hook(std::make_unique<BreakNote>(name, broken));
    }
    for (const autograd::Edge& edge : node->next_edges()) {
      if (edge.function && seen.insert(edge.function.get()).second) open.push_back(edge.function.get());
    }
  }
  return broken;
}

[[noreturn]] void refuse_operator(const std::string& name) {
  throw RuntimeFault(
      "the model's operator " + name +
      " has no second derivative, which the curvature of the loss needs. Compute with operators that have "
      "one, or switch off what asks for curvature.");
}

/// Calls LibTorch, whose complaint of an operator without a second derivative becomes ours.
template <class Body>
auto differentiated(Body&& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    const std::string begin = "derivative for ", end = " is not implemented";
    const auto from = text.find(begin), to = text.find(end);
    if (from == std::string::npos || to == std::string::npos || to < from) throw;
    refuse_operator("'" + text.substr(from + begin.size(), to - from - begin.size()) + "'");
  }
}

std::vector<at::Tensor> states_of(const std::vector<std::pair<std::string, at::Generator>>& generators) {
  std::vector<at::Tensor> states;
  for (const auto& [name, one] : generators) {
    at::Generator generator = one;
    const std::lock_guard lock(generator.mutex());
    states.push_back(generator.get_state().clone());
  }
  return states;
}

void set_states(const std::vector<std::pair<std::string, at::Generator>>& generators,
                const std::vector<at::Tensor>& states) {
  for (std::size_t i = 0; i < states.size(); ++i) {
    at::Generator generator = generators[i].second;
    const std::lock_guard lock(generator.mutex());
    generator.set_state(states[i]);
  }
}

}  // namespace

/// While it lives, generators go on from given states.
class Curvature::GeneratorScope {
 public:
  GeneratorScope(std::vector<std::pair<std::string, at::Generator>> generators, const GeneratorStates& states)
      : generators_(std::move(generators)), before_(states_of(generators_)) {
    set_states(generators_, states);
  }
  ~GeneratorScope() { set_states(generators_, before_); }
  GeneratorScope(const GeneratorScope&) = delete;

 private:
  std::vector<std::pair<std::string, at::Generator>> generators_;
  GeneratorStates before_;
};

Curvature::Window::Window(Curvature& curvature, std::string step, double loss_scale) : curvature_(curvature) {
  curvature.open_ = true;
  curvature.step_ = std::move(step);
  curvature.scale_ = std::min(loss_scale, kMostScale);
}

Curvature::Window::~Window() { curvature_.close(); }

void Curvature::close() {
  open_ = false;
  loss_.reset();
  names_.clear();
  parameters_.clear();
  gradients_.clear();
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < buffers_.size(); ++i) engine_.buffers[i].copy_(buffers_[i]);
  buffers_.clear();
  kept_.reset();
}

void Curvature::keep(const Batch& batch) {
  if (wanted_) kept_ = Kept{batch, states_of(engine_.generators())};
}

void Curvature::run_forward() {
  for (const at::Tensor& buffer : engine_.buffers) buffers_.push_back(buffer.clone());
  const GeneratorScope generators(engine_.generators(), kept_->generators);
  const UnfusedAttention unfused;
  Batch batch = kept_->batch;
  loss_ = engine_.forward(batch);
  if (!loss_.requires_grad()) throw RuntimeFault("the loss depends on no trainable parameter, so it has no curvature.");
}

/// The loss's gradient by these parameters, with the graph that it was computed by.
void Curvature::differentiate(const std::vector<std::string>& parameters) {
  names_.clear();
  gradients_.clear();
  parameters_.clear();
  for (const std::string& name : parameters) {
    const auto& entries = engine_.store->entries();
    const auto found =
        std::find_if(entries.begin(), entries.end(), [&](const ParameterEntry& entry) { return entry.name == name; });
    if (found == entries.end()) throw RuntimeFault("hessian_vector: no trainable parameter is named '" + name + "'.");
    parameters_.push_back(found->parameter);
  }
  const auto broken = watch_foreign_functions(loss_);
  gradients_ = differentiated([&] {
    return autograd::grad({loss_}, parameters_, {at::full_like(loss_, scale_)}, /*retain_graph=*/true,
                          /*create_graph=*/true, /*allow_unused=*/true);
  });
  if (!broken->empty()) refuse_operator("'" + *broken + "'");
  names_ = parameters;
}

/// This rank's product, float32, times the scale.
std::vector<at::Tensor> Curvature::multiply(const std::vector<at::Tensor>& v) {
  std::vector<at::Tensor> outputs, weights;
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    if (!gradients_[i].defined() || !gradients_[i].requires_grad()) continue;
    outputs.push_back(gradients_[i]);
    weights.push_back(v[i].to(gradients_[i].options().requires_grad(false)));
  }
  std::vector<at::Tensor> made(parameters_.size());
  if (!outputs.empty()) {
    made = differentiated([&] {
      return autograd::grad(outputs, parameters_, weights, /*retain_graph=*/true, /*create_graph=*/false,
                            /*allow_unused=*/true);
    });
  }
  for (std::size_t i = 0; i < made.size(); ++i) {
    made[i] = made[i].defined() ? made[i].to(at::kFloat) : at::zeros_like(v[i]);
  }
  return made;
}

at::Tensor Curvature::mean_over_ranks(const std::vector<at::Tensor>& values) const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& one : values) flat.push_back(one.reshape({-1}));
  at::Tensor all = at::cat(flat);
  if (engine_.ranks->size() == 1) return all;
  const UnseenScope unseen;  // what ranks exchange is no use of parameters
  engine_.store->settle();
  engine_.ranks->all_reduce_exact(step_ + ", curvature", all);
  return all.div_(engine_.ranks->size());
}

std::vector<at::Tensor> Curvature::product(const std::vector<std::string>& parameters,
                                           const std::vector<at::Tensor>& v) {
  if (!open_ || !kept_) {
    throw RuntimeFault(
        "hessian_vector: products are for the event UPDATE_BEGIN of a step that is not skipped and that began after "
        "want_curvature, in a program whose forward the engine calls (Engine::forward, not Engine::pass).");
  }
  const at::AutoGradMode with_grad(true);
  if (!loss_.defined()) run_forward();
  if (names_ != parameters) differentiate(parameters);
  for (std::size_t i = 0; i < v.size(); ++i) {
    if (v[i].sizes() == parameters_[i].sizes() && v[i].scalar_type() == at::kFloat) continue;
    throw RuntimeFault("hessian_vector: the vector's tensor for '" + parameters[i] +
                       "' must be float32 and of its shape, " + c10::str(parameters_[i].sizes()) + ".");
  }
  const bool narrow = std::any_of(parameters_.begin(), parameters_.end(),
                                  [](const at::Tensor& one) { return one.scalar_type() == at::kHalf; });
  at::Tensor all = mean_over_ranks(multiply(v));
  // All ranks see the same mean, and take the same way.
  while (narrow && scale_ > 1 && !at::isfinite(all).all().item<bool>()) {
    scale_ = std::max(1.0, scale_ / 16);
    differentiate(parameters);
    all = mean_over_ranks(multiply(v));
  }
  const at::NoGradGuard no_grad;
  all = at::nan_to_num(all.div_(scale_), 0.0, 0.0, 0.0);
  std::vector<at::Tensor> products;
  std::int64_t from = 0;
  for (const at::Tensor& one : v) {
    products.push_back(all.narrow(0, from, one.numel()).view(one.sizes()));
    from += one.numel();
  }
  return products;
}

}  // namespace capstan
