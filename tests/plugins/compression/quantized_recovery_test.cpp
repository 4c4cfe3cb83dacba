// Runs with compressions that lose a forward, a step or their process go on as if they had not.
#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/round.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/plugins/compression/quantized_net.hpp"
#include "tests/support/ranks.hpp"

namespace capstan::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr const char* kStages[] = {R"({"stage": 0})", R"({"stage": 2})",
                                   R"({"stage": 3, "stage3_param_persistence_threshold": 0})"};
constexpr const char* kTwoMicroBatches = R"(, "gradient_accumulation_steps": 2)";

std::shared_ptr<Communicator> shared(Communicator& communicator) {
  return {&communicator, [](Communicator*) {}};
}

/// A folder that all ranks know; rank 0 has made it.
std::string shared_folder(Communicator& communicator, std::optional<test::TemporaryFolder>& folder) {
  if (communicator.rank() == 0) folder.emplace();
  return communicator.all_gather_text("test: folder", folder ? folder->path().string() : "").front();
}

/// What the compressions of a run would save now.
std::string states_of(NetRun& run, const std::string& dir) {
  run.engine.save_checkpoint(dir, "states");
  return read_checkpoint(dir, "states").state.at("compressions").dump();
}

/// A step of micro-batches, each of which fails so many times before it succeeds. Evaluates between failures and
/// success.
double step_of_failures(NetRun& run, const std::vector<int>& failures) {
  const auto next = run.batches();
  double sum = 0;
  for (const int times : failures) {
    const Batch batch = next();
    for (run.net.fails = times; run.net.fails > 0;) {
      Batch lost = batch;
      EXPECT_THAT([&] { run.engine.forward(lost); }, ThrowsMessage<PluginError>(HasSubstr("out of ideas")));
    }
    sum += run.evaluated();
    Batch kept = batch;
    const at::Tensor loss = run.engine.forward(kept);
    sum += loss.item<double>();
    run.engine.backward(loss);
    run.engine.step();
  }
  return sum;
}

TEST(QuantizedRuns, CountAMicroBatchOnceThatWasTriedAgain) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    std::optional<test::TemporaryFolder> folder;
    const std::string dir = shared_folder(communicator, folder);
    for (const char* zero : kStages) {
      const std::string config = net_config(2, zero, kTwoMicroBatches);
      NetRun straight(config, shared(communicator)), run(config, shared(communicator));
      straight.step();
      run.step();
      EXPECT_EQ(step_of_failures(run, {1, 2}), step_of_failures(straight, {0, 0})) << zero;
      EXPECT_EQ(states_of(run, dir), states_of(straight, dir)) << zero;
      EXPECT_EQ(run.step(), straight.step()) << zero;
      EXPECT_TRUE(at::equal(run.values(), straight.values())) << zero;
      EXPECT_EQ(run.evaluated(), straight.evaluated()) << zero;
    }
    communicator.all_gather_text("test: end", "");  // the folder ends with rank 0
  });
}

void throws_in_backward(NetRun& run) {
  run.net.fails_backward = true;
  EXPECT_THAT([&] { run.step(); }, ThrowsMessage<std::runtime_error>(HasSubstr("no way back")));
  run.net.fails_backward = false;
}

void throws_in_forward(NetRun& run) {
  run.net.fails = 1;
  EXPECT_THAT([&] { run.step(); }, ThrowsMessage<PluginError>(HasSubstr("out of ideas")));
}

void loses_its_loss(NetRun& run) {
  run.net.factor = run.engine.rank() == 0 ? std::numeric_limits<double>::infinity() : 1;
  EXPECT_THAT([&] { run.step(); }, ThrowsMessage<RuntimeFault>(HasSubstr("the loss is not finite at step ")));
  run.net.factor = 1;
}

void does_half_a_step(NetRun& run) {
  Batch other = net_batch(1000, run.engine.config().batch.micro_batch_size);
  run.engine.backward(run.engine.forward(other));
  run.engine.step();
}

TEST(QuantizedRuns, GoOnFromACheckpointWhateverHappenedSince) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    std::optional<test::TemporaryFolder> folder;
    const std::string dir = shared_folder(communicator, folder);
    for (const char* zero : kStages) {
      const std::string config = net_config(2, zero, kTwoMicroBatches);
      NetRun straight(config, shared(communicator)), run(config, shared(communicator));
      straight.step();
      run.step();
      for (void (*detour)(NetRun&) : {throws_in_forward, throws_in_backward, loses_its_loss, does_half_a_step}) {
        run.engine.save_checkpoint(dir, "before");
        detour(run);
        run.engine.load_checkpoint(dir, "before");
        EXPECT_EQ(run.step(), straight.step()) << zero;
        EXPECT_EQ(states_of(run, dir), states_of(straight, dir)) << zero;
      }
      EXPECT_TRUE(at::equal(run.values(), straight.values())) << zero;
    }
    communicator.all_gather_text("test: end", "");  // the folder ends with rank 0
  });
}

constexpr const char* kInputs = R"("activation_quantization": {"shared_parameters": {"enabled": true,
    "quantization_type": "symmetric", "range_calibration": "static", "schedule_offset": 0}, "different_groups": {
    "a": {"params": {"bits": 8}, "modules": ["fc1", "fc2"]}}})";
/// Comes before the quantization of inputs, and does not act yet.
constexpr const char* kLater = R"("weight_quantization": {"shared_parameters": {"enabled": true,
    "quantize_weight_in_forward": true, "schedule_offset": 1000, "quantize_groups": 1}, "different_groups": {
    "w": {"params": {"start_bits": 8, "target_bits": 8}, "modules": ["fc1"]}}}, )";

TEST(QuantizedRuns, FindTheirStatesAgainWhereCompressionsComeAndGo) {
  const test::TemporaryFolder folder;
  const std::string dir = folder.path().string(), zero = R"({"stage": 0})";
  const auto make = [&](const std::string& sections) {
    return std::make_unique<NetRun>(net_config(1, zero, "", "", sections), Communicator::alone());
  };
  const auto run = make(kInputs);
  run->steps(3);
  run->engine.save_checkpoint(dir, "saved");
  CheckpointContents contents = read_checkpoint(dir, "saved");
  const std::string ranges = contents.state.at("compressions").at("activation_quantization").as_string();
  EXPECT_THAT(ranges, HasSubstr("fc1"));
  // As earlier releases named it.
  contents.state["compressions"] = Json::object();
  contents.state["compressions"]["0 activation_quantization"] = ranges;
  write_checkpoint(dir, "old", contents);
  const auto loss = run->step();
  for (const std::string tag : {"saved", "old"}) {
    const auto more = make(std::string(kLater) + kInputs);
    more->engine.load_checkpoint(dir, tag);
    more->engine.save_checkpoint(dir, "again");
    EXPECT_EQ(read_checkpoint(dir, "again").state.at("compressions").at("activation_quantization").as_string(), ranges);
    EXPECT_EQ(more->step(), loss) << tag;
  }
  const auto none = make("");
  ::testing::internal::CaptureStderr();
  none->engine.load_checkpoint(dir, "saved");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr(": holds a state of compression 'activation_quantization', which this run does not have."));
  none->engine.save_checkpoint(dir, "none");
  ::testing::internal::CaptureStderr();
  run->engine.load_checkpoint(dir, "none");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr(": holds no state of compression 'activation_quantization', which begins anew."));
}

/// All parameters and their states, whole.
std::map<std::string, at::Tensor> tensors_of(const CheckpointContents& contents) {
  std::map<std::string, at::Tensor> whole;
  for (const CheckpointTensor& part : contents.tensors) {
    if (part.parameter.empty()) continue;
    at::Tensor& to = whole[part.parameter + " " + part.state];
    if (!to.defined()) to = at::zeros({c10::multiply_integers(part.shape)}, part.values.options());
    to.narrow(0, part.offset, part.values.numel()).copy_(part.values.view({-1}));
  }
  return whole;
}

void expect_same_checkpoint(const std::string& dir, const std::string& found, const std::string& expected) {
  const CheckpointContents a = read_checkpoint(dir, found), b = read_checkpoint(dir, expected);
  const auto values = tensors_of(a), wanted = tensors_of(b);
  EXPECT_EQ(values.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) EXPECT_TRUE(at::equal(values.at(name), tensor)) << found << " " << name;
  EXPECT_EQ(a.state.at("compressions").dump(), b.state.at("compressions").dump()) << found;
}

/// A run of some ranks at a stage takes up a checkpoint, and writes it again before it goes on.
double go_on(Communicator& communicator, const std::string& dir, const std::string& tag, const char* zero) {
  const int ranks = communicator.size();
  NetRun run(net_config(ranks, zero), shared(communicator), /*seed=*/7);
  run.engine.load_checkpoint(dir, tag);
  const std::string again = tag + "_" + std::to_string(ranks) + zero[10];
  run.engine.save_checkpoint(dir, again);
  expect_same_checkpoint(dir, again, tag);
  EXPECT_EQ(test::read_bytes(dir + "/" + tag + ".loss"), std::to_string(run.evaluated())) << again;
  return run.step();
}

void write_loss(NetRun& run, const std::string& file) {
  const std::string loss = std::to_string(run.evaluated());
  if (run.engine.rank() == 0) std::ofstream(file) << loss;
}

/// Two ranks train and save; four go on and save; one, and two again, go on from what each of them saved.
TEST(QuantizedRuns, GoOnInAnotherWorldAndAtAnotherStage) {
  const char* given = std::getenv("CAPSTAN_TEST_FOLDER");
  std::optional<test::TemporaryFolder> folder;
  if (given == nullptr) setenv("CAPSTAN_TEST_FOLDER", folder.emplace().path().c_str(), 1);
  const auto body = [](Communicator& communicator) {
    const std::string dir = std::getenv("CAPSTAN_TEST_FOLDER");
    const bool begins = !std::filesystem::exists(dir + "/two");
    communicator.all_gather_text("test: looked", "");
    if (begins) {
      NetRun run(net_config(2, kStages[2]), shared(communicator));
      run.steps(3);
      run.engine.save_checkpoint(dir, "two");
      write_loss(run, dir + "/two.loss");
      return;
    }
    std::vector<double> losses;
    for (const char* zero : kStages) losses.push_back(go_on(communicator, dir, "two", zero));
    for (const double loss : losses) EXPECT_EQ(loss, losses[0]);
    if (communicator.size() < 4) {
      go_on(communicator, dir, "four", kStages[1]);
      return;
    }
    NetRun run(net_config(4, kStages[2]), shared(communicator));
    run.engine.load_checkpoint(dir, "two");
    run.steps(2);
    run.engine.save_checkpoint(dir, "four");
    write_loss(run, dir + "/four.loss");
  };
  for (const int ranks : {2, 4, 1, 2}) test::expect_on_ranks(ranks, body);
}

/// Groups of a weight, each with the largest magnitude on the lowest level (sheet 9).
at::Tensor rounded(const at::Tensor& weight, std::int64_t groups, int bits) {
  const at::Tensor x = weight.reshape({groups, -1});
  const double levels = std::ldexp(1.0, bits);
  const at::Tensor scale = x.abs().amax({1}, true) * 2 / levels;
  return (at::round(x / scale).clamp(-levels / 2, levels / 2 - 1) * scale).reshape({-1});
}

TEST(QuantizedRuns, CompressAnewTheWeightsThatTheyAreGiven) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    std::optional<test::TemporaryFolder> folder;
    const std::string dir = shared_folder(communicator, folder), file = dir + "/weights.safetensors";
    const QuantizedNet other(5);
    if (communicator.rank() == 0) {
      std::vector<SafetensorsEntry> entries;
      for (const NamedTensor& one : other.parameters) entries.push_back({one.name, one.tensor.detach()});
      write_safetensors(file, entries);
    }
    communicator.all_gather_text("test: written", "");
    const auto weight = [&](int index) { return other.parameters[static_cast<std::size_t>(index)].tensor.detach(); };
    const at::Tensor expected = at::cat(
        {rounded(weight(0), 512, 8), rounded(weight(1), 4, 8), rounded(weight(2), 4, 4), weight(3).reshape({-1})});
    NetRun born(net_config(2, kStages[0]), shared(communicator), /*seed=*/5);
    const std::vector<double> losses = born.steps(3);
    for (const char* zero : kStages) {
      NetRun run(net_config(2, zero), shared(communicator));
      run.engine.load_weights(file);
      EXPECT_TRUE(at::equal(run.values(), expected)) << zero;
      EXPECT_EQ(run.steps(3), losses) << zero;
      EXPECT_EQ(states_of(run, dir), states_of(born, dir)) << zero;
    }
    communicator.all_gather_text("test: end", "");  // the folder ends with rank 0
  });
}

/// A run that nothing compresses is gone on with as one with compressions, and that again as the first.
TEST(QuantizedRuns, TakeUpARunWithoutCompressionsAndGiveItBack) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    std::optional<test::TemporaryFolder> folder;
    const std::string dir = shared_folder(communicator, folder);
    const auto plain_config = [](const char* zero) { return net_config(2, zero, "", "", ""); };
    NetRun plain(plain_config(kStages[0]), shared(communicator));
    plain.steps(2);
    plain.engine.save_checkpoint(dir, "plain");
    const at::Tensor masters = plain.values();
    const auto part = [&](std::int64_t first, std::int64_t count) { return masters.narrow(0, first, count); };
    const std::int64_t words = 512 * 256, layer = 384 * 256;
    const at::Tensor expected = at::cat({rounded(part(0, words), 512, 8), rounded(part(words, layer), 4, 8),
                                         rounded(part(words + layer, layer), 4, 4),
                                         part(words + 2 * layer, masters.numel() - words - 2 * layer)});
    std::vector<double> losses;
    for (const char* zero : kStages) {
      NetRun run(net_config(2, zero), shared(communicator), /*seed=*/3);
      run.engine.load_checkpoint(dir, "plain");
      EXPECT_TRUE(at::equal(run.values(), expected)) << zero;
      run.engine.save_checkpoint(dir, "compressed");
      NetRun back(plain_config(zero), shared(communicator), /*seed=*/3);
      back.engine.load_checkpoint(dir, "compressed");
      EXPECT_TRUE(at::equal(back.values(), masters)) << zero;
      losses.push_back(run.steps(2).back());
      EXPECT_EQ(losses.back(), losses.front()) << zero;
    }
    communicator.all_gather_text("test: end", "");  // the folder ends with rank 0
  });
}

}  // namespace
}  // namespace capstan::testing
