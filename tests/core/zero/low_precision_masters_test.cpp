// Masters, and moments, of 16 bits: at every stage, offloaded, resumed, and against a loop written by hand.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "core/checkpoint/checkpoint.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "tests/core/zero/mixed_model.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

using test::MixedRun;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kLargest = 100;  // the model's largest parameter has 40,100 elements, in two parts

constexpr const char* kAdamW = R"({"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}})";
constexpr const char* kLamb = R"({"type": "Lamb", "params": {"lr": 0.01, "weight_decay": 0.1}})";
constexpr const char* kSgd = R"({"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}})";
constexpr const char* kMuon = R"({"type": "Muon", "params": {"lr": 0.01}})";

constexpr const char* kMasters = R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true})";
constexpr const char* kAll =
    R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true})";
constexpr const char* kAtRandom =
    R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true},
       "capstan": {"precision": {"stochastic_rounding": true}})";
constexpr const char* kFp16 =
    R"("fp16": {"enabled": true, "fp16_master_weights_and_grads": true, "initial_scale_power": 12})";
constexpr const char* kFp16AtRandom =
    R"("fp16": {"enabled": true, "fp16_master_weights_and_grads": true, "initial_scale_power": 12},
       "capstan": {"precision": {"stochastic_rounding": true}})";

constexpr const char* kStage0 = R"({"stage": 0})";
constexpr const char* kZeros[] = {
    R"({"stage": 1})", R"({"stage": 1, "reduce_bucket_size": 3000, "sub_group_size": 500})",
    R"({"stage": 2, "overlap_comm": true})", R"({"stage": 3, "stage3_param_persistence_threshold": 0})",
    R"({"stage": 3, "stage3_param_persistence_threshold": 1500, "sub_group_size": 5000})"};

/// `rows`: of a rank's micro-batch.
std::string config_of(int rows, const std::string& optimizer, const std::string& precision, const std::string& zero,
                      const std::string& more = "") {
  return R"({"train_micro_batch_size_per_gpu": )" + std::to_string(rows) +
         R"(, "steps_per_print": null, "optimizer": )" + optimizer + R"(, "zero_optimization": )" + zero + ", " +
         precision + more + "}";
}

std::shared_ptr<Communicator> shared(Communicator& communicator) {
  return {&communicator, [](Communicator*) {}};
}

MixedRun run_of(
    const std::string& config, const std::shared_ptr<Communicator>& ranks,
    const std::function<void(Config&)>& change = [](Config&) {}) {
  return {config, ranks, 1, kLargest, {}, nullptr, change};
}

/// Every parameter and state of a checkpoint, whole: "large, exp_avg" -> its values.
std::map<std::string, at::Tensor> tensors_of(const std::filesystem::path& folder) {
  std::map<std::string, at::Tensor> whole;
  for (const CheckpointTensor& part : read_checkpoint(folder, latest_tag(folder)).tensors) {
    if (part.state.find("generator") != std::string::npos) continue;  // each rank has one
    at::Tensor& to = whole[part.parameter + ", " + part.state];
    if (!to.defined()) to = at::zeros({c10::multiply_integers(part.shape)}, part.values.options());
    to.narrow(0, part.offset, part.values.numel()).copy_(part.values.view({-1}));
  }
  return whole;
}

void expect_same(const std::map<std::string, at::Tensor>& found, const std::map<std::string, at::Tensor>& expected,
                 const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (const auto& [name, values] : expected) {
    ASSERT_TRUE(found.contains(name)) << what << ": " << name;
    EXPECT_EQ(found.at(name).scalar_type(), values.scalar_type()) << what << ": " << name;
    EXPECT_TRUE(at::equal(found.at(name), values)) << what << ": " << name;
  }
}

/// A folder that all ranks know, until the last of them is done.
class SharedFolder {
 public:
  explicit SharedFolder(Communicator& communicator) : communicator_(communicator) {
    const auto mine = std::filesystem::temp_directory_path() / ("low_precision" + std::to_string(getpid()));
    path_ = communicator.all_gather_text("folder", mine.string())[0];
  }
  ~SharedFolder() {
    communicator_.all_gather_text("done", "");
    if (communicator_.rank() == 0) std::filesystem::remove_all(path_);
    communicator_.all_gather_text("removed", "");
  }
  const std::string& path() const { return path_; }

 private:
  Communicator& communicator_;
  std::string path_;
};

std::map<std::string, at::Tensor> saved_by(MixedRun& run, Communicator& communicator) {
  const SharedFolder folder(communicator);
  run.engine.save_checkpoint(folder.path());
  return tensors_of(folder.path());
}

TEST(LowPrecisionMasters, TrainAlikeAtEveryStage) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    // Without accumulation, whose sums of 16 bits are rounded once more for each micro-batch from stage 2 on.
    constexpr const char* kClipped = R"(, "gradient_clipping": 0.05)";
    for (const auto& [optimizer, precision, more] : {std::tuple{kAdamW, kMasters, kClipped},
                                                     {kAdamW, kAll, ""},
                                                     {kAdamW, kAtRandom, kClipped},
                                                     {kLamb, kAtRandom, ""},
                                                     {kSgd, kAll, kClipped},
                                                     {kMuon, kAtRandom, ""},
                                                     {kAdamW, kFp16, ""},
                                                     {kSgd, kFp16AtRandom, kClipped}}) {
      MixedRun whole = run_of(config_of(6, optimizer, precision, kStage0, more), shared(communicator));
      whole.model.skips = false;  // at stage 3 ranks bring the same parameters in the same order
      const auto losses = whole.steps(3);
      const auto expected = saved_by(whole, communicator);
      for (const char* zero : kZeros) {
        MixedRun run = run_of(config_of(6, optimizer, precision, zero, more), shared(communicator));
        run.model.skips = false;
        const std::string what = std::string(optimizer) + precision + zero;
        EXPECT_EQ(run.steps(3), losses) << what;
        EXPECT_TRUE(at::equal(run.values(), whole.values())) << what;
        expect_same(saved_by(run, communicator), expected, what);
      }
    }
  });
}

/// Ranks whose samples are all equal have the gradients that a single process has: only the cut differs.
TEST(LowPrecisionMasters, RoundAtRandomAlikeInEveryNumberOfProcesses) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    const auto trained = [&](const std::shared_ptr<Communicator>& ranks, const char* zero) {
      MixedRun run = run_of(config_of(4, kAdamW, kAtRandom, zero), ranks);
      for (int step = 0; step < 4; ++step) {
        run.engine.train_batch([&] {
          Batch batch;
          batch.tensors.emplace("x", at::full({4, 5}, 0.5 + step));
          return batch;
        });
      }
      return run.values();
    };
    const at::Tensor alone = trained(Communicator::alone(), kStage0);
    for (const char* zero : kZeros) EXPECT_TRUE(at::equal(trained(shared(communicator), zero), alone)) << zero;
  });
}

/// The parameters are the masters: what a checkpoint holds, and what it does not.
TEST(LowPrecisionMasters, AreTheParametersThemselves) {
  for (const auto& [precision, moments] : {std::pair{kMasters, at::kFloat}, {kAll, at::kBFloat16}}) {
    const TemporaryFolder folder;
    MixedRun run = run_of(config_of(12, kAdamW, precision, kStage0), Communicator::alone());
    run.model.skips = false;
    run.steps(2);
    run.engine.save_checkpoint(folder.path());
    const auto tensors = tensors_of(folder.path());
    for (const NamedTensor& parameter : run.model.parameters) {
      const at::Tensor& master = tensors.at(parameter.name + ", param");
      EXPECT_EQ(master.scalar_type(), at::kBFloat16) << parameter.name;
      EXPECT_TRUE(at::equal(master, parameter.tensor.detach().reshape({-1}))) << parameter.name;
      if (parameter.name == "frozen") continue;
      EXPECT_EQ(tensors.at(parameter.name + ", exp_avg").scalar_type(), moments) << parameter.name;
      EXPECT_EQ(tensors.at(parameter.name + ", exp_avg_sq").scalar_type(), moments) << parameter.name;
    }
  }
}

/// AdamW as its authors write it, in fp32, of 16-bit values that are rounded to the nearest when they are kept.
class HandWrittenAdamW {
 public:
  HandWrittenAdamW(test::MixedModel& model, at::ScalarType moments) : model_(model) {
    for (NamedTensor& parameter : model.parameters) {
      const at::Tensor values = parameter.tensor.detach().to(at::kBFloat16).contiguous();
      parameter.tensor = values.requires_grad_(parameter.tensor.requires_grad());
      first_.push_back(at::zeros_like(values, moments));
      second_.push_back(at::zeros_like(values, moments));
    }
  }

  double step(const at::Tensor& x) {
    at::Tensor loss = model_.loss(x);
    torch::autograd::backward({loss}, {});
    ++updates_;
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < first_.size(); ++i) {
      at::Tensor& parameter = model_.parameters[i].tensor;
      if (!parameter.grad().defined()) continue;
      update(parameter, parameter.grad().contiguous(), first_[i], second_[i]);
      parameter.mutable_grad().reset();
    }
    return loss.item<double>();
  }

 private:
  void update(const at::Tensor& parameter, const at::Tensor& gradient, at::Tensor& first, at::Tensor& second) const {
    constexpr float kRate = 0.01f, kDecay = 0.1f, kBeta1 = 0.9f, kBeta2 = 0.999f, kEps = 1e-8f;
    const at::Tensor p = parameter.detach().to(at::kFloat), g = gradient.to(at::kFloat), m = first.to(at::kFloat),
                     v = second.to(at::kFloat);
    const auto t = static_cast<double>(updates_);
    const double c1 = 1 - std::pow(0.9, t), c2 = 1 - std::pow(0.999, t);
    auto *ps = p.mutable_data_ptr<float>(), *ms = m.mutable_data_ptr<float>(), *vs = v.mutable_data_ptr<float>();
    const auto* gs = g.const_data_ptr<float>();
    for (std::int64_t k = 0; k < p.numel(); ++k) {
      ms[k] = kBeta1 * ms[k] + (1 - kBeta1) * gs[k];
      vs[k] = kBeta2 * vs[k] + (1 - kBeta2) * gs[k] * gs[k];
      const double moved = ms[k] / c1 / (std::sqrt(vs[k] / c2) + kEps) + kDecay * ps[k];
      ps[k] = static_cast<float>(ps[k] - kRate * moved);
    }
    parameter.detach().copy_(p);
    first.copy_(m);
    second.copy_(v);
  }

  test::MixedModel& model_;
  std::vector<at::Tensor> first_, second_;
  int updates_ = 0;
};

TEST(LowPrecisionMasters, TrainAsALoopWrittenByHand) {
  for (const auto& [precision, moments] : {std::pair{kMasters, at::kFloat}, {kAll, at::kBFloat16}}) {
    constexpr int kSteps = 20;
    MixedRun run =
        run_of(config_of(12, kAdamW, precision, kStage0, R"(, "gradient_clipping": 0)"), Communicator::alone());
    run.model.skips = false;
    test::MixedModel model(1, kLargest);
    model.skips = false;
    HandWrittenAdamW by_hand(model, moments);
    for (int step = 0; step < kSteps; ++step) {
      const at::Tensor x = test::rows_of_stream(12 * step, 12).tensors.at("x");
      EXPECT_NEAR(run.step(), by_hand.step(x), 1e-3) << step;
    }
    // A number that rounding in another order has moved past the middle of two is a neighbour then.
    std::int64_t same = 0, all = 0;
    for (std::size_t i = 0; i < model.parameters.size(); ++i) {
      const at::Tensor found = run.model.parameters[i].tensor.detach(), expected = model.parameters[i].tensor.detach();
      same += (found == expected).sum().item<std::int64_t>();
      all += found.numel();
    }
    EXPECT_GE(static_cast<double>(same), 0.98 * static_cast<double>(all));
  }
}

/// A learning rate at which an update is a thousandth of the gap between neighbours: masters that are rounded to the
/// nearest stand still, masters that are rounded at random go where fp32 masters go.
TEST(LowPrecisionMasters, MoveBySmallUpdatesOnAverageAtRandomAlone) {
  const auto moved = [](const std::string& precision) {
    constexpr const char* kSlow = R"({"type": "SGD", "params": {"lr": 1.0}})";
    MixedRun run =
        run_of(config_of(12, kSlow, precision, kStage0, R"(, "gradient_clipping": 0)"), Communicator::alone());
    const at::Tensor before = run.values().clone();
    run.steps(30);
    return (run.values() - before).narrow(0, 40, 40'000);
  };
  const at::Tensor exact = moved(R"("fp16": {"enabled": false})"), nearest = moved(kMasters), random = moved(kAtRandom);
  const auto size = [](const at::Tensor& way) { return way.to(at::kDouble).norm().item<double>(); };
  // The way that many elements go together: noise of rounding is in no direction.
  const auto along = [&](const at::Tensor& way) {
    const at::Tensor to = exact.to(at::kDouble);
    return (way.to(at::kDouble) * to).sum().item<double>() / (size(exact) * size(exact));
  };
  EXPECT_LT(along(nearest), 0.2);
  EXPECT_NEAR(along(random), 1, 0.1);
}

struct Away {
  const char *optimizer, *parameters;  // stores; null: in memory
};

/// Offloaded, with tiles of a few elements, as in memory.
TEST(LowPrecisionMasters, TrainOffloadedAsInMemory) {
  for (const char* precision : {kMasters, kAll, kAtRandom}) {
    for (const char* optimizer : {kAdamW, kSgd, kLamb}) {
      const std::string config =
          config_of(12, optimizer, precision, R"({"stage": 3, "stage3_param_persistence_threshold": 0})",
                    R"(, "gradient_clipping": 0.05, "gradient_accumulation_steps": 2)");
      MixedRun plain = run_of(config, Communicator::alone(), [](Config& read) { read.zero.stage = 0; });
      const auto losses = plain.steps(4);
      for (const Away& away : {Away{"cpu", nullptr}, {"cpu", "cpu"}, {nullptr, "cpu"}}) {
        MixedRun run = run_of(config, Communicator::alone(), [&](Config& read) {
          read.zero.stage = away.parameters ? 3 : 0;
          read.zero.sub_group_size = 5000;
          if (away.optimizer) read.optimizer_offload = ComponentChoice{"offload", away.optimizer};
          if (away.parameters) read.parameter_offload = ComponentChoice{"offload", away.parameters};
        });
        const std::string what = std::string(precision) + optimizer + (away.optimizer ? away.optimizer : "memory");
        EXPECT_EQ(run.steps(4), losses) << what;
        EXPECT_TRUE(at::equal(run.values(), plain.values())) << what;
        const TemporaryFolder found, expected;
        run.engine.save_checkpoint(found.path());
        plain.engine.save_checkpoint(expected.path());
        expect_same(tensors_of(found.path()), tensors_of(expected.path()), what);
      }
    }
  }
}

TEST(LowPrecisionMasters, GoOnFromACheckpointToTheBit) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    for (const char* precision : {kMasters, kAtRandom, kFp16AtRandom}) {
      const SharedFolder folder(communicator);
      MixedRun first = run_of(config_of(6, kAdamW, precision, kZeros[2]), shared(communicator));
      first.steps(3);
      first.engine.save_checkpoint(folder.path());
      const auto losses = first.steps(3);
      for (const char* zero : {kStage0, kZeros[4]}) {
        MixedRun again = run_of(config_of(6, kAdamW, precision, zero), shared(communicator));
        again.engine.load_checkpoint(folder.path());
        EXPECT_EQ(again.steps(3), losses) << precision << zero;
        EXPECT_TRUE(at::equal(again.values(), first.values())) << precision << zero;
      }
    }
  });
}

/// What log lines say while `body` runs.
std::string logged(const std::function<void()>& body) {
  testing::internal::CaptureStderr();
  body();
  return testing::internal::GetCapturedStderr();
}

TEST(LowPrecisionMasters, AreMadeOfFp32MastersAndTheOtherWayRound) {
  const std::string fp32 = config_of(12, kAdamW, R"("bf16": {"enabled": true})", kStage0);
  const std::string low = config_of(12, kAdamW, kAll, kStage0);
  const TemporaryFolder exact, rounded;
  MixedRun with_masters = run_of(fp32, Communicator::alone());
  with_masters.steps(2);
  with_masters.engine.save_checkpoint(exact.path());
  MixedRun without = run_of(low, Communicator::alone());
  EXPECT_THAT(
      logged([&] { without.engine.load_checkpoint(exact.path()); }),
      testing::AllOf(HasSubstr("has master weights in fp32, and this run keeps them in bf16: they were rounded."),
                     HasSubstr("has states of the optimizer in fp32, and this run keeps them in bf16: they were "
                               "rounded.")));
  EXPECT_TRUE(at::equal(without.values(), with_masters.values()));  // the compute copies were rounded already
  without.step();
  without.engine.save_checkpoint(rounded.path());
  EXPECT_THAT(logged([&] { with_masters.engine.load_checkpoint(rounded.path()); }),
              HasSubstr("has master weights in bf16, and this run keeps them in fp32, as exact as they were saved."));
  EXPECT_TRUE(at::equal(without.values(), with_masters.values()));
  EXPECT_EQ(without.step(), with_masters.step());  // forward of equal weights
}

TEST(LowPrecisionMasters, RefuseAnOptimizerOfTheProgramsOwn) {
  MixedRun run =
      run_of(R"({"train_micro_batch_size_per_gpu": 12, "steps_per_print": null, )" + std::string(kMasters) + "}",
             Communicator::alone());
  EXPECT_THAT(
      [&] { run.engine.set_own_optimizer([](const std::vector<OwnSlot>&) {}); },
      ThrowsMessage<ConfigError>(HasSubstr("bf16.bf16_master_weights_and_grads: an optimizer of the program's own "
                                           "updates fp32 masters.")));
}

}  // namespace
}  // namespace capstan
