#include "capstan/decode_attention.hpp"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <vector>

namespace capstan {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kHeads = 6, kKvHeads = 2, kWidth = 20, kCapacity = 9, kSequences = 4;

class DecodeAttentionTest : public ::testing::Test {
 protected:
  DecodeAttentionTest() {
    at::manual_seed(5);
    step.queries = at::randn({3, kHeads, kWidth});
    step.keys = at::randn({3, kKvHeads, kWidth});
    step.values = at::randn({3, kKvHeads, kWidth});
    step.cos = at::randn({3, 12});
    step.sin = at::randn({3, 12});
    step.cached_keys = at::randn({kSequences, kKvHeads, kCapacity, kWidth});
    step.cached_values = at::randn({kSequences, kKvHeads, kCapacity, kWidth});
    step.sequences = {2, 0, 3};
    step.lengths = {4, 0, 8};
    step.scale = 0.3;
  }

  /// A head turned by the formula x cos + (-x2, x1) sin of its first dimensions.
  static at::Tensor turned(const at::Tensor& head, const at::Tensor& cos, const at::Tensor& sin) {
    const std::int64_t dim = cos.size(0), half = dim / 2;
    const at::Tensor part = head.narrow(-1, 0, dim), rest = head.narrow(-1, dim, head.size(-1) - dim);
    const at::Tensor swapped = at::cat({-part.narrow(-1, half, half), part.narrow(-1, 0, half)}, -1);
    return at::cat({part * cos + swapped * sin, rest}, -1);
  }

  /// The result of a row in double, from a cache as it was before the step.
  at::Tensor expected(std::int64_t row, const at::Tensor& keys, const at::Tensor& values) const {
    const auto at_row = static_cast<std::size_t>(row);
    const auto in_double = [](const at::Tensor& tensor) { return tensor.to(at::kDouble); };
    const at::Tensor cos = in_double(step.cos[row]), sin = in_double(step.sin[row]);
    std::vector<at::Tensor> heads;
    for (std::int64_t head = 0; head < kHeads; ++head) {
      const std::int64_t shared = head / (kHeads / kKvHeads);
      const auto before = [&](const at::Tensor& cached) {
        return in_double(cached[step.sequences[at_row]][shared]).narrow(0, 0, step.lengths[at_row]);
      };
      at::Tensor all_keys = at::cat({before(keys), turned(in_double(step.keys[row][shared]), cos, sin).unsqueeze(0)});
      at::Tensor all_values = at::cat({before(values), in_double(step.values[row][shared]).unsqueeze(0)});
      if (step.window > 0 && step.window < all_keys.size(0)) {
        const std::int64_t from = all_keys.size(0) - step.window;
        all_keys = all_keys.narrow(0, from, step.window);
        all_values = all_values.narrow(0, from, step.window);
      }
      const at::Tensor scores = all_keys.mv(turned(in_double(step.queries[row][head]), cos, sin)) * step.scale;
      heads.push_back(all_values.t().mv(at::softmax(scores, 0)).unsqueeze(0));
    }
    return at::cat(heads);
  }

  const at::NoGradGuard no_grad_;
  DecodeAttention step;
};

TEST_F(DecodeAttentionTest, MixesTheValuesOfEachSequenceByTheFormula) {
  for (const std::int64_t window : {0, 1, 3, 100}) {
    step.window = window;
    const at::Tensor keys = step.cached_keys.clone(), values = step.cached_values.clone();
    const at::Tensor found = decode_attention(step);
    ASSERT_EQ(found.sizes(), step.queries.sizes());
    for (std::int64_t row = 0; row < 3; ++row) {
      EXPECT_LT((found[row].to(at::kDouble) - expected(row, keys, values)).abs().max().item<double>(), 2e-6)
          << row << ", window " << window;
    }
  }
}

TEST_F(DecodeAttentionTest, PutsKeysAndValuesBehindThoseOfTheirSequenceAlone) {
  const at::Tensor keys = step.cached_keys.clone(), values = step.cached_values.clone();
  decode_attention(step);
  for (std::int64_t row = 0; row < 3; ++row) {
    const std::int64_t sequence = step.sequences[static_cast<std::size_t>(row)];
    const std::int64_t place = step.lengths[static_cast<std::size_t>(row)];
    for (std::int64_t head = 0; head < kKvHeads; ++head) {
      const at::Tensor key = turned(step.keys[row][head], step.cos[row], step.sin[row]);
      EXPECT_LT((step.cached_keys[sequence][head][place] - key).abs().max().item<double>(), 1e-6);
      keys[sequence][head][place] = step.cached_keys[sequence][head][place];
      values[sequence][head][place] = step.values[row][head];
    }
  }
  EXPECT_TRUE(step.cached_keys.equal(keys));
  EXPECT_TRUE(step.cached_values.equal(values));
}

TEST_F(DecodeAttentionTest, GivesARowTheSameBitsWhateverIsBesideIt) {
  DecodeAttention alone = step;
  alone.cached_keys = step.cached_keys.clone();
  alone.cached_values = step.cached_values.clone();
  const at::Tensor together = decode_attention(step);
  for (std::int64_t row = 0; row < 3; ++row) {
    const auto at_row = static_cast<std::size_t>(row);
    DecodeAttention one = alone;
    for (at::Tensor* tensor : {&one.queries, &one.keys, &one.values, &one.cos, &one.sin}) {
      *tensor = tensor->narrow(0, row, 1);
    }
    one.sequences = {step.sequences[at_row]};
    one.lengths = {step.lengths[at_row]};
    EXPECT_TRUE(decode_attention(one)[0].equal(together[row])) << row;
  }
}

TEST_F(DecodeAttentionTest, LeavesHeadsAsTheyAreWithoutAnEmbedding) {
  DecodeAttention plain = step;
  plain.cos = plain.sin = at::Tensor();
  plain.cached_keys = step.cached_keys.clone();
  plain.cached_values = step.cached_values.clone();
  step.cos.fill_(1);
  step.sin.fill_(0);
  EXPECT_TRUE(decode_attention(plain).equal(decode_attention(step)));
}

TEST_F(DecodeAttentionTest, RefusesWhatDoesNotFitTogether) {
  const auto error_of = [](const DecodeAttention& wrong) -> std::string {
    try {
      decode_attention(wrong);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "none";
  };
  DecodeAttention wrong = step;
  wrong.lengths[2] = kCapacity;
  EXPECT_THAT(error_of(wrong), HasSubstr("row 2 is sequence 3 with 9 tokens, and the cache has 4 of 9."));
  wrong = step;
  wrong.sequences[0] = kSequences;
  EXPECT_THAT(error_of(wrong), HasSubstr("row 0 is sequence 4 with 4 tokens, and the cache has 4 of 9."));
  wrong = step;
  wrong.keys = at::randn({3, 4, kWidth});
  EXPECT_THAT(error_of(wrong), HasSubstr("the tensors do not fit together: queries [3, 6, 20], keys [3, 4, 20]"));
  wrong = step;
  wrong.queries = step.queries.to(at::kDouble);
  EXPECT_THAT(error_of(wrong), HasSubstr("expected contiguous float32 tensors on the CPU."));
  wrong = step;
  wrong.sin = at::Tensor();
  EXPECT_THAT(error_of(wrong), HasSubstr("expected cosines and sines"));
}

TEST_F(DecodeAttentionTest, NormsRowsByTheFormula) {
  const at::Tensor x = at::randn({3, 1, 67}), weight = at::randn({67});
  const at::Tensor wide = x.to(at::kDouble);
  const at::Tensor exact = wide * (wide.square().mean(-1, true) + 1e-5).rsqrt() * weight.to(at::kDouble);
  const at::Tensor found = few_rows_rms_norm(x, weight, 1e-5);
  EXPECT_LT((found.to(at::kDouble) - exact).abs().max().item<double>(), 2e-6);
  EXPECT_TRUE(few_rows_rms_norm(x.narrow(0, 1, 1), weight, 1e-5)[0].equal(found[1]));
  const at::Tensor half = x.to(at::kBFloat16), of_half = weight.to(at::kBFloat16);
  EXPECT_TRUE(few_rows_rms_norm(half, of_half, 1e-5).equal(of_half * at::rms_norm(half, {67}, {}, 1e-5)));
}

}  // namespace
}  // namespace capstan
