#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "core/memory/tensor_handle.hpp"
#include "core/registry/plugin_call.hpp"
#include "sdk/conformance/component_under_test.hpp"
#include "sdk/conformance/device_under_test.hpp"
#include "sdk/conformance/footprint.hpp"

/// What components of kind attention keep to: those that have layouts, and those that compute with them.
namespace capstan::conformance {
namespace {

class AttentionUnderTest {
 public:
  AttentionUnderTest(const Context& context, const ComponentManifest& manifest)
      : component_(context, manifest), device_(device_of(manifest)) {}

  const capstan_attention* table() const { return component_.vtable<capstan_attention>(); }
  void* self() const { return component_.self(); }
  c10::Device device() const { return device_; }
  bool has_layouts() const { return CAPSTAN_HAS(table(), facts) && CAPSTAN_HAS(table(), layout); }
  bool is_kernel() const {
    return CAPSTAN_HAS(table(), prepare) && CAPSTAN_HAS(table(), release) && CAPSTAN_HAS(table(), forward) &&
           CAPSTAN_HAS(table(), backward);
  }
  capstan_attention_facts facts() const {
    capstan_attention_facts facts{};
    facts.struct_size = sizeof facts;
    must("facts", [&](capstan_error* error) { return table()->facts(self(), &facts, error); });
    return facts;
  }
  /// No cells where it refuses the shape.
  std::vector<std::uint8_t> layout(std::uint32_t heads, std::uint32_t blocks, std::uint64_t seed) const {
    constexpr std::uint8_t kGuard = 77;
    const std::size_t size = std::size_t{heads} * blocks * blocks;
    std::vector<std::uint8_t> cells(size, 0);
    cells.push_back(kGuard);
    capstan_attention_shape shape{};
    shape.struct_size = sizeof shape;
    shape.heads = heads;
    shape.blocks = blocks;
    shape.seed = seed;
    const std::string what = "layout of " + std::to_string(heads) + " heads and " + std::to_string(blocks) + " blocks";
    if (!may_refuse(what, [&](capstan_error* error) { return table()->layout(self(), &shape, cells.data(), error); }))
      return {};
    expect(cells.back() == kGuard, what + ": writes beyond its cells.");
    cells.pop_back();
    for (const std::uint8_t cell : cells) {
      expect(cell <= 1, what + ": a cell is " + std::to_string(cell) + ", and must be 0 or 1.");
    }
    return cells;
  }

 private:
  ComponentUnderTest component_;
  c10::Device device_;
};

void need_layouts(const AttentionUnderTest& attention) {
  if (!attention.has_layouts()) throw Skip("it has no layouts.");
}

struct Shape {
  std::uint32_t heads, blocks;
};
constexpr Shape kShapes[] = {{1, 1}, {1, 2}, {2, 3}, {1, 8}, {2, 10}, {12, 16}, {4, 33}, {2, 64}};

void check_functions(const Context& context, const ComponentManifest& component) {
  const AttentionUnderTest attention(context, component);
  expect(attention.has_layouts() || attention.is_kernel(),
         "it has neither facts and layout, nor prepare, release, forward and backward.");
}

void check_facts(const Context& context, const ComponentManifest& component) {
  const AttentionUnderTest attention(context, component);
  need_layouts(attention);
  const capstan_attention_facts facts = attention.facts(), again = attention.facts();
  expect(facts.block > 0, "facts gives blocks of 0 tokens.");
  expect(facts.causal <= 1, "facts gives a 'causal' that is neither 0 nor 1.");
  expect(facts.block == again.block && facts.causal == again.causal, "facts differ from one call to the next.");
}

void check_cells(const Context& context, const ComponentManifest& component) {
  const AttentionUnderTest attention(context, component);
  need_layouts(attention);
  bool any = false;
  for (const Shape& shape : kShapes) {
    const auto cells = attention.layout(shape.heads, shape.blocks, context.seed);
    any |= std::find(cells.begin(), cells.end(), 1) != cells.end();
  }
  expect(any, "layout sets no cell, or refuses sequences of 1 to 64 blocks. Give parameters that fit by --params.");
}

void check_pure(const Context& context, const ComponentManifest& component) {
  const AttentionUnderTest one(context, component), other(context, component);
  need_layouts(one);
  for (const Shape& shape : kShapes) {
    const auto cells = one.layout(shape.heads, shape.blocks, context.seed);
    expect(cells == one.layout(shape.heads, shape.blocks, context.seed), "layout differs from one call to the next.");
    expect(cells == other.layout(shape.heads, shape.blocks, context.seed),
           "two instances have two layouts: ranks would too. Draw random cells from the seed, the head and the row.");
  }
}

/// A layout for kernels, and what goes through them.
class KernelRun {
 public:
  KernelRun(const AttentionUnderTest& attention, std::mt19937_64& random, bool causal, at::ScalarType dtype,
            std::int64_t tokens = 37)
      : attention_(attention), causal_(causal) {
    constexpr std::uint32_t kHeads = 2;
    constexpr std::int64_t kBatch = 2, kWidth = 8, kBlock = 8;
    const auto blocks = static_cast<std::uint32_t>((tokens + kBlock - 1) / kBlock);
    cells_.resize(std::size_t{kHeads} * blocks * blocks);
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      const std::size_t row = i / blocks % blocks, column = i % blocks;
      // The second row of blocks has no keys at all.
      cells_[i] = row != 1 && (!causal || column <= row) && (row == column || random() % 3 == 0);
    }
    layout_.struct_size = sizeof layout_;
    layout_.heads = kHeads;
    layout_.block = kBlock;
    layout_.blocks = blocks;
    layout_.causal = causal;
    layout_.cells = cells_.data();
    const auto draw = [&](std::int64_t width) {
      at::Tensor made = at::empty({kBatch, tokens, kHeads, width});
      for (float *at = made.data_ptr<float>(), *end = at + made.numel(); at < end; ++at) {
        *at = std::normal_distribution<float>()(random);
      }
      return made.to(attention.device(), dtype).transpose(1, 2);
    };
    q = draw(kWidth);
    k = draw(kWidth);
    v = draw(kWidth + 3);
    grad = draw(kWidth + 3);
    allowed_ = at::zeros({1, kHeads, tokens, tokens}, at::kBool);
    for (std::int64_t i = 0; i < allowed_.numel(); ++i) {
      const std::int64_t key = i % tokens, query = i / tokens % tokens, head = i / tokens / tokens;
      const auto cell = static_cast<std::size_t>((head * blocks + query / kBlock) * blocks + key / kBlock);
      allowed_.data_ptr<bool>()[i] = cells_[cell] != 0 && (!causal || key <= query);
    }
  }

  void add_term(const at::Tensor& values) {
    terms_.push_back(values.to(attention_.device()).expand({q.size(0), q.size(1), q.size(2), q.size(2)}));
  }

  struct Result {
    at::Tensor out, log_sum_exp, grad_q, grad_k, grad_v;
    std::vector<at::Tensor> grad_terms;
  };
  Result run() const {
    const auto* table = attention_.table();
    void* plan = nullptr;
    must("prepare", [&](capstan_error* error) { return table->prepare(attention_.self(), &layout_, &plan, error); });
    Result made;
    const float none = std::numeric_limits<float>::quiet_NaN();
    made.out = at::full({q.size(0), q.size(2), q.size(1), v.size(3)}, none, q.options()).transpose(1, 2);
    made.log_sum_exp = at::full({q.size(0), q.size(1), q.size(2)}, none, q.options().dtype(at::kFloat));
    made.grad_q = at::full(q.sizes(), none, q.options());
    made.grad_k = at::full(k.sizes(), none, q.options());
    made.grad_v = at::full(v.sizes(), none, q.options());
    std::vector<capstan_attention_term> terms(terms_.size());
    std::vector<const capstan_attention_term*> pointers;
    for (std::size_t i = 0; i < terms.size(); ++i) {
      terms[i] = {sizeof terms[i], terms_[i].scalar_type() == at::kBool, handle_of(terms_[i]), nullptr};
      made.grad_terms.push_back(at::zeros(terms_[i].sizes(), q.options().dtype(at::kFloat)));
      if (!terms[i].mask) terms[i].grad = handle_of(made.grad_terms.back());
      pointers.push_back(&terms[i]);
    }
    capstan_attention_call call{};
    call.struct_size = sizeof call;
    call.scale = kScale;
    call.q = handle_of(q);
    call.k = handle_of(k);
    call.v = handle_of(v);
    call.terms = pointers.data();
    call.term_count = pointers.size();
    must("forward", [&](capstan_error* error) {
      return table->forward(attention_.self(), plan, &call, handle_of(made.out), handle_of(made.log_sum_exp), error);
    });
    must("backward", [&](capstan_error* error) {
      return table->backward(attention_.self(), plan, &call, handle_of(made.out), handle_of(made.log_sum_exp),
                             handle_of(grad), handle_of(made.grad_q), handle_of(made.grad_k), handle_of(made.grad_v),
                             error);
    });
    table->release(attention_.self(), plan);
    for (at::Tensor* tensor : {&made.out, &made.log_sum_exp, &made.grad_q, &made.grad_k, &made.grad_v}) {
      *tensor = tensor->to(at::kCPU);
    }
    for (at::Tensor& tensor : made.grad_terms) tensor = tensor.to(at::kCPU);
    return made;
  }

  /// Masked dense attention in double precision, with its gradients by hand.
  Result expected() const {
    const auto exact = [](const at::Tensor& tensor) { return tensor.to(at::kCPU, at::kDouble); };
    const at::Tensor dq = exact(q), dk = exact(k), dv = exact(v), dout = exact(grad);
    at::Tensor scores = at::matmul(dq, dk.transpose(-1, -2)).mul(kScale), allowed = allowed_;
    for (const at::Tensor& of_device : terms_) {
      const at::Tensor term = of_device.to(at::kCPU);
      if (term.scalar_type() == at::kBool) {
        allowed = allowed.logical_and(term);
      } else {
        scores = scores.add(term);
      }
    }
    const at::Tensor none = at::full({}, -std::numeric_limits<double>::infinity(), at::kDouble);
    const at::Tensor weights = at::where(allowed, scores, none);
    Result made;
    made.log_sum_exp = weights.logsumexp(-1);
    const at::Tensor p =
        at::where(allowed, weights.sub(made.log_sum_exp.unsqueeze(-1)).exp(), at::zeros({}, at::kDouble));
    made.out = at::matmul(p, dv);
    made.grad_v = at::matmul(p.transpose(-1, -2), dout);
    const at::Tensor deltas = dout.mul(made.out).sum(-1, true);
    const at::Tensor of_scores = p.mul(at::matmul(dout, dv.transpose(-1, -2)).sub(deltas));
    made.grad_q = at::matmul(of_scores, dk).mul(kScale);
    made.grad_k = at::matmul(of_scores.transpose(-1, -2), dq).mul(kScale);
    for (std::size_t i = 0; i < terms_.size(); ++i) made.grad_terms.push_back(of_scores);
    return made;
  }
  bool masks(std::size_t term) const { return terms_[term].scalar_type() == at::kBool; }

  at::Tensor q, k, v, grad;

 private:
  static constexpr double kScale = 0.4;
  const AttentionUnderTest& attention_;
  bool causal_;
  std::vector<std::uint8_t> cells_;
  capstan_attention_layout layout_{};
  at::Tensor allowed_;
  std::vector<at::Tensor> terms_;
};

void need_kernel(const AttentionUnderTest& attention) {
  if (!attention.is_kernel()) throw Skip("it computes nothing.");
}

void expect_near(const std::string& what, const at::Tensor& found, const at::Tensor& wanted, double tolerance) {
  const double difference = found.to(at::kDouble).sub(wanted).abs().max().item<double>();
  const double largest = wanted.abs().max().item<double>();
  expect(difference <= tolerance * largest, what + ": differs from masked dense attention by " +
                                                std::to_string(difference / largest) +
                                                " of its largest value, and may by " + std::to_string(tolerance) + ".");
}

constexpr at::ScalarType kKernelDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};
double tolerance_of(at::ScalarType dtype) { return dtype == at::kFloat ? 1e-5 : 2e-2; }

void check_forward(const Context& context, const ComponentManifest& component) {
  const AttentionUnderTest attention(context, component);
  need_kernel(attention);
  auto random = context.random();
  for (const at::ScalarType dtype : kKernelDtypes) {
    for (const bool causal : {false, true}) {
      const KernelRun run(attention, random, causal, dtype);
      const auto found = run.run(), wanted = run.expected();
      const std::string what = std::string(causal ? "causal, " : "") + c10::toString(dtype);
      expect_near("out, " + what, found.out, wanted.out, tolerance_of(dtype));
      // Queries without a key have -infinity.
      const at::Tensor finite = wanted.log_sum_exp.isfinite();
      expect(found.log_sum_exp.isinf().logical_and(found.log_sum_exp.lt(0)).equal(finite.logical_not()),
             "log_sum_exp, " + what + ": must be -infinity for queries without a key, and only for them.");
      expect_near("log_sum_exp, " + what, found.log_sum_exp.masked_select(finite),
                  wanted.log_sum_exp.masked_select(finite), tolerance_of(dtype));
    }
  }
}

void check_gradients(const Context& context, const ComponentManifest& component) {
  const AttentionUnderTest attention(context, component);
  need_kernel(attention);
  auto random = context.random();
  for (const at::ScalarType dtype : kKernelDtypes) {
    for (const bool causal : {false, true}) {
      const KernelRun run(attention, random, causal, dtype);
      const auto found = run.run(), wanted = run.expected();
      const std::string what = std::string(causal ? "causal, " : "") + c10::toString(dtype);
      expect_near("gradient of q, " + what, found.grad_q, wanted.grad_q, tolerance_of(dtype));
      expect_near("gradient of k, " + what, found.grad_k, wanted.grad_k, tolerance_of(dtype));
      expect_near("gradient of v, " + what, found.grad_v, wanted.grad_v, tolerance_of(dtype));
    }
  }
}

void check_terms(const Context& context, const ComponentManifest& component) {
  const AttentionUnderTest attention(context, component);
  need_kernel(attention);
  auto random = context.random();
  KernelRun run(attention, random, false, at::kFloat);
  const std::int64_t tokens = run.q.size(2);
  at::Tensor padding = at::full({2, 1, 1, tokens}, true, at::kBool), bias = at::empty({1, 2, tokens, tokens});
  for (std::int64_t key = tokens - 5; key < tokens; ++key) padding.data_ptr<bool>()[key] = false;
  for (float *at = bias.data_ptr<float>(), *end = at + bias.numel(); at < end; ++at) {
    *at = std::normal_distribution<float>()(random);
  }
  run.add_term(padding);
  run.add_term(bias);
  const auto found = run.run(), wanted = run.expected();
  expect_near("out with terms", found.out, wanted.out, tolerance_of(at::kFloat));
  expect_near("gradient of q with terms", found.grad_q, wanted.grad_q, tolerance_of(at::kFloat));
  for (std::size_t i = 0; i < found.grad_terms.size(); ++i) {
    if (!run.masks(i)) {
      expect_near("gradient of a term that is added", found.grad_terms[i], wanted.grad_terms[i],
                  tolerance_of(at::kFloat));
    }
  }
}

void check_threads(const Context& context, const ComponentManifest& component) {
  const AttentionUnderTest attention(context, component);
  need_kernel(attention);
  auto random = context.random();
  const KernelRun run(attention, random, true, at::kFloat, 301);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const auto one = run.run();
  at::set_num_threads(std::max(before, 3));
  const auto several = run.run();
  at::set_num_threads(before);
  expect(one.out.equal(several.out) && one.grad_q.equal(several.grad_q) && one.grad_k.equal(several.grad_k) &&
             one.grad_v.equal(several.grad_v),
         "results depend on the number of threads.");
}

void check_leak(const Context& context, const ComponentManifest& component) {
  const AttentionUnderTest attention(context, component);
  if (attention.has_layouts()) return expect_no_leak("layout", [&] { attention.layout(2, 10, 1); });
  need_kernel(attention);
  auto random = context.random();
  const KernelRun run(attention, random, true, at::kFloat);
  expect_no_leak("forward and backward", [&] { run.run(); });
}

}  // namespace

Cases attention_cases(const ComponentManifest& component) {
  const std::string prefix = "attention/" + component.type + "/";
  const auto bound = [component](auto check) {
    return [component, check](const Context& context) { check(context, component); };
  };
  return {
      {prefix + "functions", "It has the functions of a layout, or those of a kernel.", bound(check_functions)},
      {prefix + "facts", "A block has tokens, and facts stay as they are.", bound(check_facts)},
      {prefix + "cells", "Cells are 0 or 1, and some are 1.", bound(check_cells)},
      {prefix + "pure", "A shape and a seed have one layout, in every process.", bound(check_pure)},
      {prefix + "forward", "A kernel's output is that of masked dense attention.", bound(check_forward)},
      {prefix + "gradients", "So are the gradients of q, k and v.", bound(check_gradients)},
      {prefix + "terms", "Masks leave scores out, biases join them and get a gradient.", bound(check_terms)},
      {prefix + "threads", "The number of threads changes no bit.", bound(check_threads)},
      {prefix + "calls_leak", "Calls keep no memory, however many a run makes.", bound(check_leak)},
  };
}

}  // namespace capstan::conformance
