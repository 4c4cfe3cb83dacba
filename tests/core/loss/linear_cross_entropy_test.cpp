// The operator by itself, against the loss of all logits in double precision.
#include "capstan/linear_cross_entropy.hpp"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>

#include "core/loss/loss_chunk.hpp"
#include "core/precision/autocast.hpp"
#include "tests/support/counting_allocator.hpp"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int64_t kRows = 33, kWidth = 16, kVocabulary = 37;
constexpr std::int64_t kFiveRows = 5 * kVocabulary * 4;  // a chunk's bytes

/// A head with its inputs; hidden is [3, 11, width], and some labels do not count.
struct Head {
  at::Tensor hidden, weight, labels;
  LinearCrossEntropyOptions options;

  static Head of(at::ScalarType dtype, LinearCrossEntropyOptions options = {}) {
    torch::manual_seed(5);
    Head head{torch::randn({3, 11, kWidth}), torch::randn({kVocabulary, kWidth}) * 0.3,
              torch::randint(0, kVocabulary, {3, 11}), std::move(options)};
    head.labels.select(0, 2).fill_(head.options.ignore_index);
    head.labels[0][3] = head.options.ignore_index;
    if (head.options.bias.defined()) head.options.bias = head.options.bias.to(dtype);
    head.hidden = head.hidden.to(dtype);
    head.weight = head.weight.to(dtype);
    return head;
  }
  Head leaves(at::ScalarType dtype) const {
    Head own = *this;
    for (at::Tensor* tensor : {&own.hidden, &own.weight, &own.options.bias}) {
      if (tensor->defined()) *tensor = tensor->detach().to(dtype, false, /*copy=*/true).requires_grad_(true);
    }
    return own;
  }
  Head leaves() const { return leaves(hidden.scalar_type()); }
  at::Tensor loss() const { return linear_cross_entropy(hidden, weight, labels, options); }
  std::vector<at::Tensor> inputs() const {
    return options.bias.defined() ? std::vector{hidden, weight, options.bias} : std::vector{hidden, weight};
  }

  /// -log softmax(softcap(hidden weight^T + bias) / divisor))[label], the mean over labels that count.
  at::Tensor definition() const {
    at::Tensor logits = hidden.matmul(weight.t());
    if (options.bias.defined()) logits = logits + options.bias;
    logits = logits / options.divisor;
    if (options.softcap) logits = *options.softcap * (logits / *options.softcap).tanh();
    const at::Tensor counts = labels != options.ignore_index;
    const at::Tensor losses = logits.logsumexp(-1) - logits.gather(-1, (labels * counts).unsqueeze(-1)).squeeze(-1);
    return (losses * counts).sum() / counts.sum();
  }
};

std::vector<LinearCrossEntropyOptions> all_options() {
  std::vector<LinearCrossEntropyOptions> all;
  for (const bool bias : {false, true}) {
    for (const bool capped : {false, true}) {
      for (const double divisor : {1.0, 2.5}) {
        for (const std::int64_t ignored : {-100, 0}) {
          all.push_back({bias ? torch::linspace(-1, 1, kVocabulary) : at::Tensor(),
                         capped ? std::optional(3.0) : std::nullopt, divisor, ignored});
        }
      }
    }
  }
  return all;
}

void expect_near(const at::Tensor& found, const at::Tensor& expected, double tolerance, const std::string& what = "") {
  const double worst = (found.to(torch::kDouble) - expected.to(torch::kDouble)).abs().max().item<double>();
  EXPECT_LE(worst, tolerance * expected.abs().max().item<double>()) << what;
}

/// Loss and gradients of a loss times `scale`, within `tolerance` of the definition in double precision.
void expect_as_defined(const Head& given, double tolerance, double scale = 1) {
  const Head head = given.leaves(), exact = given.leaves(torch::kDouble);
  const at::Tensor loss = head.loss(), expected = exact.definition();
  (loss * scale).backward();
  (expected * scale).backward();
  expect_near(loss, expected, tolerance, "loss");
  for (std::size_t i = 0; i < head.inputs().size(); ++i) {
    EXPECT_EQ(head.inputs()[i].grad().scalar_type(), head.hidden.scalar_type());
    expect_near(head.inputs()[i].grad(), exact.inputs()[i].grad(), tolerance, "gradient " + std::to_string(i));
  }
}

TEST(LinearCrossEntropy, IsTheDefinitionInChunksAndAtOnce) {
  for (const LinearCrossEntropyOptions& options : all_options()) {
    for (const std::int64_t bytes : {std::int64_t{1}, kFiveRows, std::int64_t{0}}) {
      const LossChunkScope chunk(bytes);
      expect_as_defined(Head::of(torch::kDouble, options), 1e-13);
      expect_as_defined(Head::of(torch::kFloat, options), 2e-6);
      expect_as_defined(Head::of(torch::kBFloat16, options), 2e-2);
      expect_as_defined(Head::of(torch::kHalf, options), 3e-3);
    }
  }
}

TEST(LinearCrossEntropy, OfAllLogitsIsLibTorchsBitByBit) {
  const LossChunkScope all(0);
  const Head head = Head::of(torch::kFloat).leaves(), other = head.leaves();
  const at::Tensor loss = head.loss();
  const at::Tensor expected =
      at::cross_entropy_loss(at::linear(other.hidden, other.weight).flatten(0, 1), other.labels.flatten());
  loss.backward();
  expected.backward();
  EXPECT_TRUE(loss.equal(expected));
  EXPECT_TRUE(head.hidden.grad().equal(other.hidden.grad()));
  EXPECT_TRUE(head.weight.grad().equal(other.weight.grad()));
}

// A mean over 3,000 rows gives tokens that are no label gradients that float16 cannot hold until the loss scale comes
// in.
TEST(LinearCrossEntropy, KeepsGradientsInFloat16ThatALossScaleMakesLarge) {
  constexpr std::int64_t kTokens = 2048, kLabels = 16;
  constexpr double kScale = 65536;
  torch::manual_seed(7);
  const Head given{torch::randn({3000, kWidth}).to(torch::kHalf),
                   torch::randn({kTokens, kWidth}).mul(0.1).to(torch::kHalf),
                   torch::randint(0, kLabels, {3000}),
                   {}};
  const Head head = given.leaves(), exact = given.leaves(torch::kDouble);
  const LossChunkScope chunk(100 * kTokens * 4);
  (head.loss() * kScale).backward();
  (exact.definition() * kScale).backward();
  expect_near(head.weight.grad().slice(0, kLabels), exact.weight.grad().slice(0, kLabels), 5e-3);
  expect_near(head.hidden.grad(), exact.hidden.grad(), 2e-3);
}

TEST(LinearCrossEntropy, HoldsAChunkOfLogits) {
  const Head head{torch::randn({512, 8}), torch::randn({1024, 8}), torch::randint(0, 1024, {512}), {}};
  const std::int64_t all_logits = 512 * 1024 * 4, chunk_bytes = all_logits / 16;
  const auto peak = [&](std::int64_t bytes, bool trained) {
    const LossChunkScope chunk(bytes);
    const Head own = trained ? head.leaves() : head;
    const testing::CountingAllocator counting;
    const std::int64_t before = testing::CountingAllocator::living;
    const at::Tensor loss = own.loss();
    if (trained) loss.backward();
    return testing::CountingAllocator::peak - before;
  };
  const std::int64_t gradients = head.hidden.nbytes() + head.weight.nbytes();
  EXPECT_GT(peak(0, true), 2 * all_logits);
  EXPECT_LT(peak(chunk_bytes, true), 2 * chunk_bytes + 3 * gradients);
  EXPECT_GT(peak(chunk_bytes, true), 2 * chunk_bytes);
  EXPECT_LT(peak(chunk_bytes, false), 2 * chunk_bytes + gradients);
}

TEST(LinearCrossEntropy, GivesOneGradientHoweverOftenAGraphIsUsed) {
  const LossChunkScope chunk(kFiveRows);
  const Head head = Head::of(torch::kFloat).leaves(), once = head.leaves();
  once.loss().backward();
  const at::Tensor loss = head.loss();
  for (const bool goes_on : {true, true, false}) {
    loss.backward({}, goes_on);
    EXPECT_TRUE(head.weight.grad().equal(once.weight.grad()));
    EXPECT_TRUE(head.hidden.grad().equal(once.hidden.grad()));
    head.weight.mutable_grad().reset();
    head.hidden.mutable_grad().reset();
  }
  EXPECT_THAT([&] { loss.backward(); }, ThrowsMessage<c10::Error>(HasSubstr("a second time")));
}

TEST(LinearCrossEntropy, HasSecondDerivatives) {
  for (const LinearCrossEntropyOptions& options : all_options()) {
    const Head head = Head::of(torch::kDouble, options).leaves(), exact = head.leaves();
    const auto second = [](const Head& of, const at::Tensor& loss) {
      at::Tensor sum;
      for (const at::Tensor& gradient : torch::autograd::grad({loss.square()}, of.inputs(), {}, true, true)) {
        sum = sum.defined() ? sum + gradient.square().sum() : gradient.square().sum();
      }
      return torch::autograd::grad({sum}, of.inputs());
    };
    const LossChunkScope chunk(kFiveRows);
    const auto found = second(head, head.loss()), expected = second(exact, exact.definition());
    for (std::size_t i = 0; i < found.size(); ++i) expect_near(found[i], expected[i], 1e-12, std::to_string(i));
  }
}

TEST(LinearCrossEntropy, GivesAFrozenWeightNoGradientAndATiedOneBoth) {
  const LossChunkScope chunk(kFiveRows);
  const Head frozen = Head::of(torch::kFloat).leaves();
  const at::Tensor fixed = frozen.weight.detach();
  linear_cross_entropy(frozen.hidden, fixed, frozen.labels).backward();
  EXPECT_FALSE(fixed.grad().defined());
  EXPECT_TRUE(frozen.hidden.grad().defined());

  // Hidden states of an embedding that is the head as well.
  const at::Tensor ids = torch::arange(kRows).view({3, 11});
  const Head tied = Head::of(torch::kDouble).leaves(), exact = tied.leaves();
  linear_cross_entropy(at::embedding(tied.weight, ids), tied.weight, tied.labels).backward();
  Head{at::embedding(exact.weight, ids), exact.weight, exact.labels, {}}.definition().backward();
  expect_near(tied.weight.grad(), exact.weight.grad(), 1e-13);
}

TEST(LinearCrossEntropy, OfNoLabelIsNotANumberAndHasNoGradient) {
  for (const std::int64_t bytes : {kFiveRows, std::int64_t{0}}) {
    const LossChunkScope chunk(bytes);
    Head head = Head::of(torch::kFloat).leaves();
    head.labels = torch::full_like(head.labels, -100);
    const at::Tensor loss = head.loss();
    loss.backward();
    EXPECT_TRUE(std::isnan(loss.item<float>()));
    EXPECT_EQ(head.weight.grad().abs().max().item<float>(), 0);
    EXPECT_EQ(head.hidden.grad().abs().max().item<float>(), 0);
  }
}

TEST(LinearCrossEntropy, WithoutGradientsGivesTheLossAlone) {
  const LossChunkScope chunk(kFiveRows);
  const Head head = Head::of(torch::kFloat).leaves();
  const at::Tensor trained = head.loss();
  const torch::NoGradGuard no_grad;
  const at::Tensor loss = head.loss();
  EXPECT_FALSE(loss.requires_grad());
  EXPECT_TRUE(loss.equal(trained.detach()));
}

TEST(LinearCrossEntropy, ComputesAsLinearDoesUnderAutocast) {
  const Head head = Head::of(torch::kFloat).leaves(), halved = head.leaves(torch::kBFloat16);
  const LossChunkScope chunk(kFiveRows);
  at::Tensor loss;
  {
    const AutocastScope autocast(at::kCPU, at::kBFloat16);
    loss = head.loss();
  }
  const at::Tensor expected = halved.loss();
  loss.backward();
  expected.backward();
  EXPECT_TRUE(loss.equal(expected));
  EXPECT_EQ(head.weight.grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(head.weight.grad().equal(halved.weight.grad().to(at::kFloat)));
}

TEST(LinearCrossEntropy, NamesALabelOutsideOfTheVocabulary) {
  for (const std::int64_t bytes : {kFiveRows, std::int64_t{0}}) {
    const LossChunkScope chunk(bytes);
    for (const std::int64_t label : {kVocabulary, std::int64_t{-5}}) {
      Head head = Head::of(torch::kFloat).leaves();
      head.labels[1][10] = label;
      EXPECT_THAT([&] { head.loss(); },
                  ThrowsMessage<c10::Error>(HasSubstr("Target " + std::to_string(label) + " is out of bounds.")));
    }
  }
}

TEST(LinearCrossEntropy, SaysWhatDoesNotFit) {
  const Head head = Head::of(torch::kFloat, {.bias = torch::zeros({kVocabulary})});
  const auto refuses = [&](const std::string& text, const std::function<void(Head&)>& change) {
    Head changed = head;
    change(changed);
    EXPECT_THAT([&] { changed.loss(); }, ThrowsMessage<c10::Error>(HasSubstr(text)));
  };
  const std::string shapes =
      "capstan::linear_cross_entropy: expected hidden [..., width], weight [vocabulary, width], bias [vocabulary] and "
      "labels of hidden's leading dimensions, got hidden [3, 11, 16], weight ";
  refuses(shapes + "[16, 37], bias [37] and labels [3, 11].", [](Head& one) { one.weight = one.weight.t(); });
  refuses(shapes + "[37, 16], bias [3] and labels [3, 11].", [](Head& one) { one.options.bias = torch::zeros({3}); });
  refuses(shapes + "[37, 16], bias [37] and labels [33].", [](Head& one) { one.labels = one.labels.flatten(); });
  refuses(
      "capstan::linear_cross_entropy: expected hidden of a floating-point dtype and labels of int64, got Float and "
      "Float.",
      [](Head& one) { one.labels = one.labels.to(torch::kFloat); });
  refuses("capstan::linear_cross_entropy: softcap must be above 0, got 0.", [](Head& one) { one.options.softcap = 0; });
  refuses("capstan::linear_cross_entropy: divisor must not be 0.", [](Head& one) { one.options.divisor = 0; });
}

}  // namespace
}  // namespace capstan
