// The example of an optimizer with states of 8 bits, against the paper's arithmetic written down once more.
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include "core/engine/planned_run.hpp"
#include "tests/core/zero/mixed_model.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using test::MixedRun;

constexpr std::size_t kBlock = 2048;
constexpr std::int64_t kLargest = 100;  // the model's largest parameter has 40,100 elements, in two parts
constexpr float kLr = 0.01f, kBeta1 = 0.9f, kBeta2 = 0.999f, kEps = 1e-8f, kDecay = 0.1f;

std::string config_of(int ranks, const std::string& zero) {
  return R"({"train_micro_batch_size_per_gpu": )" + std::to_string(12 / ranks) +
         R"(, "steps_per_print": null, "gradient_clipping": 0, "optimizer":
             {"type": "Adam8bit", "params": {"lr": 0.01, "weight_decay": 0.1}}, "zero_optimization": )" +
         zero + "}";
}

/// The numbers of the paper's dynamic data type: for each of seven exponents a fraction of so many bits, in the middle
/// of equal intervals from 0.1 to 1; 0 and 1 beside them.
std::vector<float> dynamic_numbers(bool has_sign) {
  std::vector<float> numbers = {0.0f, 1.0f};
  for (int exponent = -6; exponent <= 0; ++exponent) {
    const int intervals = static_cast<int>(std::pow(2, exponent + 6 + (has_sign ? 0 : 1)));
    for (int i = 0; i < intervals; ++i) {
      const double low = 0.1 + 0.9 * i / intervals, high = 0.1 + 0.9 * (i + 1) / intervals;
      const double number = std::pow(10.0, exponent) * (low + high) / 2;
      numbers.push_back(static_cast<float>(number));
      if (has_sign) numbers.push_back(static_cast<float>(-number));
    }
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

/// What a moment is after it was kept in 8 bits: each block's numbers over the largest, as the nearest that there is;
/// of two as near the lower one.
void keep_in_8_bits(std::vector<float>& values, const std::vector<float>& numbers) {
  for (std::size_t from = 0; from < values.size(); from += kBlock) {
    const std::size_t to = std::min(from + kBlock, values.size());
    float largest = 0;
    for (std::size_t i = from; i < to; ++i) largest = std::max(largest, std::fabs(values[i]));
    for (std::size_t i = from; i < to && largest > 0; ++i) {
      const double wanted = values[i] / largest;
      float nearest = numbers[0];
      for (const float number : numbers) {
        if (std::fabs(number - wanted) < std::fabs(nearest - wanted)) nearest = number;
      }
      values[i] = nearest * largest;
    }
  }
}

/// AdamW by hand on a model of its own, whose gradient is the mean over ranks as an engine has it.
class Reference {
 public:
  Reference() : model_(1, kLargest) {
    model_.skips = false;
    for (const NamedTensor& parameter : model_.parameters) {
      first_.emplace_back(static_cast<std::size_t>(parameter.tensor.numel()));
      second_.emplace_back(static_cast<std::size_t>(parameter.tensor.numel()));
    }
  }

  void step(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      const std::int64_t rows = 12 / ranks;
      model_.loss(test::rows_of_stream(samples_ + rank * rows, rows).tensors.find("x")->second).backward();
    }
    samples_ += 12;
    ++steps_;
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < model_.parameters.size(); ++i) {
      at::Tensor& gradient = at::Tensor(model_.parameters[i].tensor).mutable_grad();
      if (gradient.defined()) update(i, gradient.div(ranks).contiguous());
      gradient.reset();
    }
  }

  std::vector<float> values() const {
    std::vector<float> all;
    for (const NamedTensor& parameter : model_.parameters) {
      const at::Tensor flat = parameter.tensor.detach().contiguous();
      all.insert(all.end(), flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel());
    }
    return all;
  }

 private:
  void update(std::size_t index, const at::Tensor& gradient) {
    at::Tensor values = model_.parameters[index].tensor.detach().contiguous().clone();
    auto* weights = values.mutable_data_ptr<float>();
    std::vector<float>&m = first_[index], &v = second_[index];
    const auto step_size = static_cast<float>(kLr / (1 - std::pow(static_cast<double>(kBeta1), steps_)));
    const auto root = static_cast<float>(std::sqrt(1 - std::pow(static_cast<double>(kBeta2), steps_)));
    for (std::size_t i = 0; i < m.size(); ++i) {
      const float g = gradient.const_data_ptr<float>()[i];
      m[i] = kBeta1 * m[i] + (1.0f - kBeta1) * g;
      v[i] = kBeta2 * v[i] + (1.0f - kBeta2) * g * g;
      weights[i] = weights[i] * (1.0f - kLr * kDecay) - step_size * m[i] / (std::sqrt(v[i]) / root + kEps);
    }
    model_.parameters[index].tensor.detach().copy_(values);
    if (m.size() < 4096) return;
    keep_in_8_bits(m, signed_);
    keep_in_8_bits(v, unsigned_);
  }

  const std::vector<float> signed_ = dynamic_numbers(true), unsigned_ = dynamic_numbers(false);
  test::MixedModel model_;
  std::vector<std::vector<float>> first_, second_;
  std::int64_t samples_ = 0;
  int steps_ = 0;
};

std::shared_ptr<Communicator> shared(Communicator& communicator) {
  return {&communicator, [](Communicator*) {}};
}

std::vector<float> values_of(MixedRun& run) {
  const at::Tensor values = run.values().contiguous();
  return {values.const_data_ptr<float>(), values.const_data_ptr<float>() + values.numel()};
}

/// How many elements differ, and the largest difference; "" when none does.
std::string difference(const std::vector<float>& found, const std::vector<float>& expected) {
  if (found.size() != expected.size()) return "another number of elements";
  int count = 0;
  float largest = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i] == expected[i]) continue;
    ++count;
    largest = std::max(largest, std::fabs(found[i] - expected[i]));
  }
  return count == 0 ? "" : std::to_string(count) + " elements differ, by up to " + c10::str(largest);
}

const char* const kZeros[] = {R"({"stage": 0})", R"({"stage": 1})", R"({"stage": 2, "overlap_comm": true})",
                              R"({"stage": 3, "stage3_param_persistence_threshold": 0})"};

TEST(Adam8bit, HasTheReferencesBitsAtEveryStage) {
  setenv("CAPSTAN_PLUGIN_PATH", CAPSTAN_TEST_BUILD_DIR "/tests/state_plugins", 1);
  test::expect_on_ranks(2, [](Communicator& communicator) {
    Reference reference;
    for (int i = 0; i < 50; ++i) reference.step(2);
    for (const char* zero : kZeros) {
      MixedRun run(config_of(2, zero), shared(communicator), 1, kLargest);
      run.model.skips = false;
      run.steps(50);
      EXPECT_EQ(difference(values_of(run), reference.values()), "") << zero;
    }
  });
}

TEST(Adam8bit, GoesOnInOneProcessAndBackInTwo) {
  setenv("CAPSTAN_PLUGIN_PATH", CAPSTAN_TEST_BUILD_DIR "/tests/state_plugins", 1);
  test::expect_on_ranks(2, [](Communicator& communicator) {
    const std::string folder = communicator.all_gather_text(
        "folder", (std::filesystem::temp_directory_path() / ("adam8bit" + std::to_string(getpid()))).string())[0];
    MixedRun two(config_of(2, kZeros[3]), shared(communicator), 1, kLargest);
    two.model.skips = false;
    two.steps(20);
    two.engine.save_checkpoint(folder);
    if (communicator.rank() == 0) {
      MixedRun one(config_of(1, kZeros[0]), Communicator::alone(), 1, kLargest);
      one.model.skips = false;
      one.engine.load_checkpoint(folder);
      one.steps(15);
      one.engine.save_checkpoint(folder);
    }
    communicator.all_gather_text("saved", "");
    MixedRun again(config_of(2, kZeros[2]), shared(communicator), 1, kLargest);
    again.model.skips = false;
    again.engine.load_checkpoint(folder);
    again.steps(15);
    Reference reference;
    for (int i = 0; i < 50; ++i) reference.step(i < 20 || i >= 35 ? 2 : 1);
    EXPECT_EQ(difference(values_of(again), reference.values()), "");
    if (communicator.rank() == 0) std::filesystem::remove_all(folder);
  });
}

/// 2 bytes an element and 8 a block of 2048, where Adam takes 8 an element.
TEST(Adam8bit, TakesAQuarterOfTheMemory) {
  setenv("CAPSTAN_PLUGIN_PATH", CAPSTAN_TEST_BUILD_DIR "/tests/state_plugins", 1);
  MixedRun run(config_of(1, kZeros[0]), Communicator::alone(), 1, kLargest);
  const PlannedRun planned = planned_run(Model(
                                             &test::MixedModel::table(), &run.model, [](void*) {}, "mixed"),
                                         run.engine.config(), run.plugins, 1);
  for (const PlannedParameter& parameter : planned.parameters) {
    if (parameter.numel < 4096 || !parameter.trainable) continue;
    const std::int64_t bytes = parameter.bytes_of_states(parameter.numel);
    EXPECT_EQ(bytes, 2 * parameter.numel + 2 * 4 * ((parameter.numel + 2047) / 2048) + 8);  // and a counter
    EXPECT_LE(static_cast<double>(bytes), 0.27 * 8 * static_cast<double>(parameter.numel));
  }
}

}  // namespace
}  // namespace capstan
