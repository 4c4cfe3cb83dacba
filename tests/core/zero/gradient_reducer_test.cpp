// Means of gradients against sums that each rank computes by itself from the gradients of all ranks.

#include "core/zero/gradient_reducer.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>

#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using test::expect_on_ranks;

// One element, less than a vector, more than a block of the partition, a whole number of blocks.
const std::vector<std::int64_t> kSizes = {1, 17, Partition::kBlock + 5, 100, 2 * Partition::kBlock, 7};
constexpr int kSteps = 3;

struct Case {
  int stage = 0, micro_batches = 1;
  bool threaded = true, during_backward = true;
  std::int64_t bucket_elements = 0;
};

/// What a micro-batch does on a rank: which parameters its loss uses, in which order, and their gradients.
struct Pass {
  std::vector<std::size_t> used;
  std::vector<at::Tensor> gradients;
};

/// The same on every rank that asks.
Pass pass_of(int rank, int step, int micro_batch) {
  std::mt19937 random(static_cast<unsigned>(1 + rank + 10 * step + 100 * micro_batch));
  Pass pass;
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    at::Tensor gradient = at::zeros({kSizes[i]});
    std::uniform_real_distribution<float> values(-1, 1);
    std::generate_n(gradient.mutable_data_ptr<float>(), kSizes[i], [&] { return values(random); });
    pass.gradients.push_back(gradient);
    // The first step shows the reducer what to wait for.
    if (step == 0 || random() % 3 != 0) pass.used.push_back(i);
  }
  std::shuffle(pass.used.begin(), pass.used.end(), random);
  return pass;
}

/// Backward gives each used parameter the gradient of the pass.
void run_backward(const std::vector<at::Tensor>& parameters, const Pass& pass) {
  at::Tensor loss = at::zeros({});
  for (const std::size_t i : pass.used) loss = loss + (parameters[i] * pass.gradients[i]).sum();
  if (loss.requires_grad()) loss.backward();
}

bool uses(const Pass& pass, std::size_t i) {
  return std::find(pass.used.begin(), pass.used.end(), i) != pass.used.end();
}

at::Tensor contribution(const Pass& pass, std::size_t i) {
  return uses(pass, i) ? pass.gradients[i] : at::zeros({kSizes[i]});
}

/// The mean that the header of GradientReducer defines: ranks are summed in their order; below stage 2 micro-batches
/// are summed before, from stage 2 on afterwards.
at::Tensor expected(const Case& one, int ranks, int step, std::size_t i) {
  const double scale = 1.0 / ranks;
  const auto sum_of_ranks = [&](auto&& of_rank) {
    at::Tensor sum = of_rank(0).clone();
    for (int rank = 1; rank < ranks; ++rank) sum.add_(of_rank(rank));
    return sum.mul_(scale);
  };
  if (one.stage < 2) {
    return sum_of_ranks([&](int rank) {
      at::Tensor sum = contribution(pass_of(rank, step, 0), i).clone();
      for (int m = 1; m < one.micro_batches; ++m) sum.add_(contribution(pass_of(rank, step, m), i));
      return sum;
    });
  }
  at::Tensor total;
  for (int m = 0; m < one.micro_batches; ++m) {
    const at::Tensor mean = sum_of_ranks([&](int rank) { return contribution(pass_of(rank, step, m), i); });
    total = total.defined() ? total.add_(mean) : mean;
  }
  return total;
}

/// A reducer over parameters of these sizes, for one rank.
class Reducing {
 public:
  Reducing(const Case& one, Communicator& communicator)
      : partition_(parameters_of_partition(), one.bucket_elements, communicator.size()), queue_(one.threaded) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      parameters_.push_back(at::ones({kSizes[i]}).requires_grad_());
      names.push_back("p" + std::to_string(i));
    }
    GradientReducer::Options options;
    options.stage = one.stage;
    options.during_backward = one.during_backward;
    options.scale_after_sum = 1.0 / communicator.size();
    const std::shared_ptr<Communicator> borrowed(&communicator, [](Communicator*) {});
    reducer_ = std::make_unique<GradientReducer>(borrowed, queue_, partition_, parameters_, names, options);
  }

  GradientReducer& reducer() { return *reducer_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// The elements that this rank has of the mean of parameter i.
  at::Tensor own(const Case& one, const at::Tensor& whole, std::size_t i, int rank) const {
    if (one.stage == 0) return whole;
    const Range part = partition_.part(i, rank);
    return whole.narrow(0, part.offset, part.numel);
  }

 private:
  static std::vector<Partition::Parameter> parameters_of_partition() {
    std::vector<Partition::Parameter> parameters;
    for (const std::int64_t numel : kSizes) parameters.push_back({numel});
    return parameters;
  }

  Partition partition_;
  WorkQueue queue_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<GradientReducer> reducer_;
};

void expect_means(const Case& one, Communicator& communicator) {
  Reducing reducing(one, communicator);
  GradientReducer& reducer = reducing.reducer();
  std::vector<at::Tensor> told(kSizes.size());  // what each gradient was when it was called complete
  reducer.on_complete([&](std::size_t i) { told[i] = reducer.gradient(i).clone(); });
  for (int step = 0; step < kSteps; ++step) {
    std::fill(told.begin(), told.end(), at::Tensor());
    for (int m = 0; m < one.micro_batches; ++m) {
      for (const at::Tensor& gradient : told) EXPECT_FALSE(gradient.defined());
      reducer.begin("step " + std::to_string(step), /*last=*/m + 1 == one.micro_batches);
      run_backward(reducing.parameters(), pass_of(communicator.rank(), step, m));
      reducer.end();
    }
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      const at::Tensor mean = reducing.own(one, expected(one, communicator.size(), step, i), i, communicator.rank());
      EXPECT_TRUE(at::equal(reducer.gradient(i), mean))
          << "stage " << one.stage << ", " << one.micro_batches << " micro-batches, buckets of " << one.bucket_elements
          << ", step " << step << ", parameter " << i;
      EXPECT_FALSE(reducing.parameters()[i].grad().defined()) << i;
      ASSERT_TRUE(told[i].defined()) << i;
      EXPECT_TRUE(at::equal(told[i], mean)) << i;
    }
    reducer.drop();
  }
}

TEST(GradientReducer, GivesTheMeanInRankOrderAtEveryStageAndBucketSize) {
  expect_on_ranks(3, [](Communicator& communicator) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int micro_batches : {1, 2}) {
        for (const std::int64_t bucket_elements : {std::int64_t{1}, Partition::kBlock, std::int64_t{1} << 30}) {
          expect_means({stage, micro_batches, true, true, bucket_elements}, communicator);
        }
      }
    }
  });
}

TEST(GradientReducer, GivesTheSameMeanWithoutOverlap) {
  expect_on_ranks(2, [](Communicator& communicator) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const bool threaded : {false, true}) {
        expect_means({stage, 2, threaded, false, Partition::kBlock}, communicator);
      }
    }
    expect_means({2, 2, false, true, Partition::kBlock}, communicator);
  });
}

/// Two backward passes in one micro-batch: the second gradient of a parameter comes when its bucket has been sent.
TEST(GradientReducer, AddsAGradientThatComesWhenItsBucketHasBeenSent) {
  expect_on_ranks(2, [](Communicator& communicator) {
    for (int stage = 0; stage <= 3; ++stage) {
      const Case one{stage, 1, true, true, 1};
      Reducing reducing(one, communicator);
      GradientReducer& reducer = reducing.reducer();
      for (const int passes : {1, 2, 2}) {  // the first step shows one gradient a parameter
        reducer.begin("step", /*last=*/true);
        for (int m = 0; m < passes; ++m) run_backward(reducing.parameters(), pass_of(communicator.rank(), 0, m));
        reducer.end();
        for (std::size_t i = 0; i < kSizes.size(); ++i) {
          at::Tensor sum = at::zeros({kSizes[i]});
          for (int rank = 0; rank < communicator.size(); ++rank) {
            for (int m = 0; m < passes; ++m) sum.add_(pass_of(rank, 0, m).gradients[i]);
          }
          const at::Tensor mean = reducing.own(one, sum.mul_(1.0 / communicator.size()), i, communicator.rank());
          EXPECT_TRUE(at::allclose(reducer.gradient(i), mean, 1e-5, 1e-6)) << stage << " " << passes << " " << i;
        }
        reducer.drop();
      }
    }
  });
}

TEST(GradientReducer, KeepsTheOwnGradientWholeInALocalStep) {
  expect_on_ranks(2, [](Communicator& communicator) {
    for (int stage = 0; stage <= 1; ++stage) {
      const Case one{stage, 1, true, true, Partition::kBlock};
      Reducing reducing(one, communicator);
      GradientReducer& reducer = reducing.reducer();
      for (int step = 0; step < kSteps; ++step) {
        const Pass pass = pass_of(communicator.rank(), step, 0);
        reducer.begin("step", /*last=*/true, /*local=*/true);
        run_backward(reducing.parameters(), pass);
        reducer.end();
        for (std::size_t i = 0; i < kSizes.size(); ++i) {
          EXPECT_TRUE(at::equal(reducer.gradient(i), contribution(pass, i))) << stage << " " << step << " " << i;
          EXPECT_EQ(reducer.touched()[i], uses(pass, i)) << i;
        }
        reducer.drop();
      }
    }
  });
}

/// A step that is given up must leave nothing to the next one.
TEST(GradientReducer, ForgetsAStepThatWasDropped) {
  expect_on_ranks(2, [](Communicator& communicator) {
    for (int stage = 0; stage <= 3; ++stage) {
      const Case one{stage, 2, true, true, Partition::kBlock};
      Reducing reducing(one, communicator);
      GradientReducer& reducer = reducing.reducer();
      reducer.begin("step 0", /*last=*/false);
      run_backward(reducing.parameters(), pass_of(communicator.rank(), 0, 0));
      reducer.end();
      reducer.drop();
      for (int m = 0; m < 2; ++m) {
        reducer.begin("step 1", /*last=*/m == 1);
        run_backward(reducing.parameters(), pass_of(communicator.rank(), 1, m));
        reducer.end();
      }
      for (std::size_t i = 0; i < kSizes.size(); ++i) {
        const at::Tensor mean = reducing.own(one, expected(one, communicator.size(), 1, i), i, communicator.rank());
        EXPECT_TRUE(at::equal(reducer.gradient(i), mean)) << stage << " " << i;
      }
    }
  });
}

}  // namespace
}  // namespace capstan
