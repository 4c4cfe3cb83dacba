// The CPU kernel against masked dense attention in double precision.
#include "core/attention/block_sparse.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>
#include <random>

#include "core/errors.hpp"
#include "tests/plugins/attention/bundled_layout.hpp"

namespace capstan::testing {
namespace {

using torch::autograd::variable_list;

constexpr const char* kModes[] = {"dense", "fixed", "variable", "bigbird", "bslongformer"};

std::shared_ptr<const PreparedLayout> prepared(const BlockLayout& layout) {
  static const auto kernel = std::make_shared<const Component>(attention_component("block_sparse"));
  return std::make_shared<const PreparedLayout>(kernel, layout);
}

/// [1, heads, tokens, tokens]: which scores there are.
at::Tensor allowed_by(const BlockLayout& layout) {
  const auto heads = static_cast<std::int64_t>(layout.heads), blocks = static_cast<std::int64_t>(layout.blocks);
  at::Tensor cells = at::empty({1, heads, blocks, blocks}, at::kBool);
  std::copy(layout.cells.begin(), layout.cells.end(), cells.data_ptr<bool>());
  const auto block = static_cast<std::int64_t>(layout.block);
  at::Tensor allowed = cells.repeat_interleave(block, 2).repeat_interleave(block, 3);
  allowed = allowed.narrow(2, 0, layout.tokens).narrow(3, 0, layout.tokens);
  return layout.causal ? allowed.tril() : allowed.contiguous();
}

/// softmax(scale q k^T + terms) v in double precision.
at::Tensor dense(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionTerms& terms,
                 double scale, at::Tensor allowed) {
  at::Tensor scores = at::matmul(q.to(at::kDouble), k.to(at::kDouble).transpose(-1, -2)).mul(scale);
  for (const at::Tensor& term : terms) {
    if (term.scalar_type() == at::kBool) {
      allowed = allowed.logical_and(term);
    } else {
      scores = scores.add(term.to(at::kDouble));
    }
  }
  const at::Tensor none = at::full({}, -std::numeric_limits<double>::infinity(), at::kDouble);
  // A query without a key has zeros.
  const at::Tensor any = allowed.any(-1, true), lonely = any.logical_not();
  const at::Tensor p = at::softmax(at::where(allowed.logical_or(lonely), scores, none), -1);
  return at::matmul(p.mul(any), v.to(at::kDouble));
}

double difference(const at::Tensor& found, const at::Tensor& wanted) {
  return found.to(at::kDouble).sub(wanted.to(at::kDouble)).abs().max().item<double>() /
         std::max(wanted.abs().max().item<double>(), 1e-30);
}

struct Inputs {
  at::Tensor q, k, v, gradient;
  AttentionTerms terms;
};

Inputs drawn_inputs(std::int64_t batch, std::int64_t heads, std::int64_t tokens, std::int64_t width,
                    at::ScalarType dtype) {
  Inputs inputs;
  // As a model makes them: queries, keys and values side by side.
  const at::Tensor all = at::randn({batch, tokens, 3, heads, width}).to(dtype).permute({2, 0, 3, 1, 4});
  for (at::Tensor* one : {&inputs.q, &inputs.k, &inputs.v}) {
    *one = all[one == &inputs.q ? 0 : one == &inputs.k ? 1 : 2].detach().requires_grad_(true);
  }
  inputs.gradient = at::randn({batch, heads, tokens, width}).to(dtype);
  return inputs;
}

struct Results {
  at::Tensor out;
  variable_list gradients;  // of q, k, v and the terms that are added
};

template <class Attend>
Results results_of(const Inputs& inputs, const Attend& attend) {
  Results made;
  made.out = attend();
  variable_list of = {inputs.q, inputs.k, inputs.v};
  for (const at::Tensor& term : inputs.terms) {
    if (term.requires_grad()) of.push_back(term);
  }
  made.gradients = torch::autograd::grad({made.out}, of, {inputs.gradient.to(made.out.scalar_type())});
  return made;
}

Results sparse_results(const Inputs& inputs, const BlockLayout& layout) {
  const auto plan = prepared(layout);
  return results_of(inputs,
                    [&] { return block_sparse_attention(inputs.q, inputs.k, inputs.v, inputs.terms, 0.11, plan); });
}
Results dense_results(const Inputs& inputs, const BlockLayout& layout) {
  return results_of(inputs,
                    [&] { return dense(inputs.q, inputs.k, inputs.v, inputs.terms, 0.11, allowed_by(layout)); });
}

void expect_near(const Results& found, const Results& wanted, double forward, double backward,
                 const std::string& what) {
  EXPECT_LE(difference(found.out, wanted.out), forward) << what;
  ASSERT_EQ(found.gradients.size(), wanted.gradients.size());
  for (std::size_t i = 0; i < wanted.gradients.size(); ++i) {
    EXPECT_LE(difference(found.gradients[i], wanted.gradients[i]), backward) << what << ", gradient " << i;
  }
}

Json mode_params(const std::string& mode, std::int64_t block, bool causal, bool per_head) {
  Json params = Json::object();
  params["block"] = block;
  if (mode == "dense") return params;
  params["attention"] = causal ? "unidirectional" : "bidirectional";
  params["different_layout_per_head"] = per_head;
  if (mode == "bigbird" || mode == "variable") params["num_random_blocks"] = 1;
  if (mode == "bigbird" || mode == "bslongformer") params["num_sliding_window_blocks"] = 1;
  if (mode == "fixed") params["num_local_blocks"] = 2;
  return params;
}

/// A setting with every value of the issue: modes, directions, heads, widths, blocks, lengths.
struct Setting {
  std::string mode;
  bool causal = false, per_head = false;
  std::int64_t heads = 1, width = 32, block = 8, tokens = 64;

  std::string text() const {
    return mode + (causal ? " causal" : "") + (per_head ? " per head" : "") + ", heads " + std::to_string(heads) +
           ", d " + std::to_string(width) + ", block " + std::to_string(block) + ", tokens " + std::to_string(tokens);
  }
  BlockLayout layout() const {
    return bundled_layout(mode, mode_params(mode, block, causal, per_head), heads, tokens, causal);
  }
};

std::vector<Setting> settings() {
  std::mt19937 random(24);
  const auto one_of = [&](std::initializer_list<std::int64_t> values) {
    return values.begin()[random() % values.size()];
  };
  std::vector<Setting> all;
  for (const char* mode : kModes) {
    for (const bool causal : {false, true}) {
      for (const std::int64_t block : {8, 16, 32, 64, 128}) {
        Setting setting{mode, causal, random() % 2 == 0, one_of({1, 2, 3, 12}), one_of({32, 64, 80, 128}), block, 0};
        setting.tokens = block * one_of({1, 2, 3}) + one_of({0, 1, 5, block - 1});
        all.push_back(setting);
      }
    }
  }
  return all;
}

TEST(BlockSparse, IsMaskedDenseAttentionInEveryMode) {
  at::manual_seed(1);
  for (const Setting& setting : settings()) {
    const BlockLayout layout = setting.layout();
    const Inputs inputs = drawn_inputs(2, setting.heads, setting.tokens, setting.width, at::kFloat);
    expect_near(sparse_results(inputs, layout), dense_results(inputs, layout), 2e-6, 1e-5, setting.text());
  }
}

TEST(BlockSparse, IsItInHalfPrecision) {
  at::manual_seed(2);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const char* mode : kModes) {
      const Setting setting{mode, true, true, 3, 80, 16, 100};
      const BlockLayout layout = setting.layout();
      const Inputs inputs = drawn_inputs(1, setting.heads, setting.tokens, setting.width, dtype);
      const Results found = sparse_results(inputs, layout);
      EXPECT_EQ(found.out.scalar_type(), dtype);
      expect_near(found, dense_results(inputs, layout), 2e-2, 2e-2, setting.text());
    }
  }
}

TEST(BlockSparse, TakesMasksAndBiasesWithTheirGradients) {
  at::manual_seed(3);
  for (const bool causal : {false, true}) {
    for (const char* mode : kModes) {
      const Setting setting{mode, causal, false, 2, 32, 16, 75};
      const std::int64_t tokens = setting.tokens;
      const BlockLayout layout = setting.layout();
      Inputs inputs = drawn_inputs(2, setting.heads, tokens, setting.width, at::kFloat);
      const at::Tensor padding = at::arange(tokens).view({1, 1, 1, tokens}).lt(at::full({2, 1, 1, 1}, 70)).contiguous();
      const at::Tensor mask = at::rand({tokens, tokens}).gt(0.2);
      const at::Tensor bias = at::randn({1, 2, tokens, tokens}).requires_grad_(true);
      for (const AttentionTerms& terms :
           {AttentionTerms{padding}, AttentionTerms{mask}, AttentionTerms{bias}, AttentionTerms{padding, mask, bias}}) {
        inputs.terms = terms;
        expect_near(sparse_results(inputs, layout), dense_results(inputs, layout), 2e-6, 1e-5,
                    setting.text() + ", terms " + std::to_string(terms.size()));
      }
    }
  }
}

TEST(BlockSparse, GivesQueriesWithoutAKeyZeros) {
  const Setting setting{"bslongformer", false, false, 2, 32, 16, 64};
  Inputs inputs = drawn_inputs(1, 2, 64, 32, at::kFloat);
  at::Tensor mask = at::full({64, 64}, true, at::kBool);
  mask.narrow(0, 20, 3).zero_();
  inputs.terms = {mask};
  const Results found = sparse_results(inputs, setting.layout());
  EXPECT_EQ(found.out.narrow(2, 20, 3).abs().max().item<float>(), 0);
  EXPECT_EQ(found.gradients[0].narrow(2, 20, 3).abs().max().item<float>(), 0);
  expect_near(found, dense_results(inputs, setting.layout()), 2e-6, 1e-5, "");
}

TEST(BlockSparse, HidesNoNaN) {
  at::manual_seed(8);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const char* mode : kModes) {
    const Setting setting{mode, true, false, 1, 32, 16, 64};
    const auto plan = prepared(setting.layout());
    for (const std::size_t input : {0, 1, 2}) {
      const Inputs inputs = drawn_inputs(1, 1, 64, 32, at::kFloat);
      variable_list given = {inputs.q.detach().clone(), inputs.k.detach().clone(), inputs.v.detach().clone()};
      given[input].select(2, 20).select(-1, 3).fill_(nan);
      for (at::Tensor& one : given) one.requires_grad_(true);
      const at::Tensor out = block_sparse_attention(given[0], given[1], given[2], {}, 0.2, plan);
      EXPECT_TRUE(out.select(2, 20).isnan().any().item<bool>()) << mode << input;
      const auto gradients = torch::autograd::grad({out}, given, {inputs.gradient});
      EXPECT_TRUE(gradients[1].isnan().any().item<bool>()) << mode << input;
    }
  }
}

TEST(BlockSparse, AgreesWithFiniteDifferences) {
  at::manual_seed(4);
  const Setting setting{"bigbird", true, true, 2, 32, 8, 32};
  const auto plan = prepared(setting.layout());
  const Inputs inputs = drawn_inputs(1, 2, 32, 8, at::kFloat);
  const Results found =
      results_of(inputs, [&] { return block_sparse_attention(inputs.q, inputs.k, inputs.v, {}, 0.4, plan); });
  const auto value = [&](const variable_list& at_point) {
    at::NoGradGuard no_grad;
    return block_sparse_attention(at_point[0], at_point[1], at_point[2], {}, 0.4, plan)
        .to(at::kDouble)
        .mul(inputs.gradient)
        .sum()
        .item<double>();
  };
  constexpr float kStep = 2e-2F;
  for (std::size_t input = 0; input < 3; ++input) {
    variable_list point = {inputs.q.detach().contiguous().clone(), inputs.k.detach().contiguous().clone(),
                           inputs.v.detach().contiguous().clone()};
    for (std::int64_t i = 0; i < point[input].numel(); i += 7) {
      float& element = point[input].data_ptr<float>()[i];
      const float before = element;
      element = before + kStep;
      const double up = value(point);
      element = before - kStep;
      const double down = value(point);
      element = before;
      const double slope = (up - down) / (2 * kStep);
      EXPECT_NEAR(found.gradients[input].contiguous().data_ptr<float>()[i], slope, 2e-3) << input << " " << i;
    }
  }
}

TEST(BlockSparse, ShowsABlockThatIsDropped) {
  at::manual_seed(5);
  for (const char* mode : kModes) {
    const Setting setting{mode, false, false, 1, 32, 16, 96};
    const BlockLayout layout = setting.layout();
    const Inputs inputs = drawn_inputs(1, 1, 96, 32, at::kFloat);
    const Results found = sparse_results(inputs, layout);
    for (std::size_t cell = 0; cell < layout.cells.size(); ++cell) {
      if (layout.cells[cell] == 0) continue;
      BlockLayout less = layout;
      less.cells[cell] = 0;
      const Results wanted = dense_results(inputs, less);
      EXPECT_GT(difference(found.out, wanted.out), 1e-3) << mode << cell;
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_GT(difference(found.gradients[i], wanted.gradients[i]), 1e-4) << mode << cell << " " << i;
      }
    }
  }
}

TEST(BlockSparse, HasTheSameBitsOnAnyNumberOfThreads) {
  at::manual_seed(6);
  const int before = at::get_num_threads();
  for (const char* mode : kModes) {
    for (const std::int64_t heads : {1, 3}) {
      const Setting setting{mode, true, false, heads, 64, 16, 700};
      const BlockLayout layout = setting.layout();
      const Inputs inputs = drawn_inputs(1, heads, setting.tokens, 64, at::kFloat);
      at::set_num_threads(1);
      const Results one = sparse_results(inputs, layout);
      for (const int threads : {2, 5}) {
        at::set_num_threads(threads);
        const Results several = sparse_results(inputs, layout);
        EXPECT_TRUE(one.out.equal(several.out)) << setting.text() << threads;
        for (std::size_t i = 0; i < 3; ++i) {
          EXPECT_TRUE(one.gradients[i].equal(several.gradients[i])) << setting.text() << threads << " " << i;
        }
      }
    }
  }
  at::set_num_threads(before);
}

TEST(BlockSparse, LetsNoTokenSeeALaterOne) {
  at::manual_seed(7);
  for (const char* mode : kModes) {
    // The layout is bidirectional: it is the call that is causal.
    const BlockLayout layout = bundled_layout(mode, mode_params(mode, 16, false, true), 2, 90, true);
    const auto plan = prepared(layout);
    const Inputs inputs = drawn_inputs(1, 2, 90, 32, at::kFloat);
    at::NoGradGuard no_grad;
    const at::Tensor before = block_sparse_attention(inputs.q, inputs.k, inputs.v, {}, 0.2, plan);
    for (const std::int64_t token : {1, 15, 16, 17, 40, 89}) {
      at::Tensor k = inputs.k.clone(), v = inputs.v.clone();
      k.select(2, token).add_(3);
      v.select(2, token).add_(3);
      const at::Tensor after = block_sparse_attention(inputs.q, k, v, {}, 0.2, plan);
      EXPECT_TRUE(after.narrow(2, 0, token).equal(before.narrow(2, 0, token))) << mode << token;
      EXPECT_FALSE(after.select(2, token).equal(before.select(2, token))) << mode << token;
    }
  }
}

TEST(BlockSparse, HasNoSecondDerivative) {
  const Setting setting{"fixed", true, false, 1, 32, 16, 32};
  const auto plan = prepared(setting.layout());
  const Inputs inputs = drawn_inputs(1, 1, 32, 32, at::kFloat);
  const at::Tensor out = block_sparse_attention(inputs.q, inputs.k, inputs.v, {}, 0.2, plan);
  EXPECT_THAT(
      [&] { torch::autograd::grad({out.sum()}, {inputs.q}, {}, true, true); },
      ::testing::ThrowsMessage<std::exception>(::testing::HasSubstr("sparse attention has no second derivatives")));
}

TEST(BlockSparse, OutlivesTheGraphOfItsLayout) {
  const Setting setting{"fixed", true, false, 1, 32, 16, 32};
  const Inputs inputs = drawn_inputs(1, 1, 32, 32, at::kFloat);
  auto plan = prepared(setting.layout());
  const at::Tensor out = block_sparse_attention(inputs.q, inputs.k, inputs.v, {}, 0.2, plan);
  plan.reset();
  EXPECT_NO_THROW(out.sum().backward());
}

TEST(BlockSparse, RefusesToBeALayout) {
  BlockLayout layout = Setting{"fixed", true, false, 1, 32, 16, 32}.layout();
  EXPECT_THAT([&] { PreparedLayout(std::make_shared<const Component>(attention_component("fixed")), layout); },
              ::testing::ThrowsMessage<ConfigError>(::testing::HasSubstr("computes nothing: it has layouts.")));
  EXPECT_THAT(
      [&] { bundled_layout("block_sparse", Json::object(), 1, 32); },
      ::testing::ThrowsMessage<ConfigError>(::testing::HasSubstr("has no layouts: it computes those of others.")));
}

}  // namespace
}  // namespace capstan::testing
