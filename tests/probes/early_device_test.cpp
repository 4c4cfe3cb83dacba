// When the file of a device is loaded: before anything draws a random number.

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "capstan/capstan.hpp"
#include "core/errors.hpp"
#include "tests/cli/programs.hpp"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

/// The device tells the seed at which it was loaded: a random number of LibTorch's own where nobody has given one.
auto loaded_before_seed(int seed) {
  return AllOf(HasSubstr("no cuda device was found: this file was loaded at seed "),
               Not(HasSubstr("at seed " + std::to_string(seed) + ".")));
}

class EarlyDevice : public ::testing::Test {
 protected:
  std::string config() const {
    const auto file = folder_ / "config.json";
    write_bytes(file, R"({"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
                          "capstan": {"model": "mlp", "run": {"device": "cuda"},
                                      "plugins": {"path": ")" CAPSTAN_TEST_BUILD_DIR R"(/tests/probe_plugins"}}})");
    return file.string();
  }
  TemporaryFolder folder_;
};

struct Line : torch::nn::Module {
  Line() : line(register_module("line", torch::nn::Linear(3, 2))) {}
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& y) { return torch::mse_loss(line(x), y); }
  torch::nn::Linear line;
};

TEST_F(EarlyDevice, IsThereBeforeTheProgramSeeds) {
  write_bytes(folder_ / "text.txt", cli::some_text());
  for (const char* command : {"train", "eval"}) {
    std::vector<std::string> words = {command, "--config", config(), "--data", "text.txt"};
    if (command == std::string("train")) words.insert(words.end(), {"--steps", "1"});
    if (command == std::string("eval")) words.insert(words.end(), {"--checkpoint", "none"});
    const ProcessResult result = cli::run_capstan(folder_, words);

    EXPECT_THAT(result.err, loaded_before_seed(1234)) << command;
  }
}

TEST_F(EarlyDevice, IsThereBeforeAModuleIsBuilt) {
  const auto build = [] {
    torch::manual_seed(7);
    return std::make_shared<Line>();
  };
  EXPECT_THAT([&] { initialize(build, config()); }, ThrowsMessage<RuntimeFault>(loaded_before_seed(7)));
  const auto step = [](Line& net, const BatchView& batch) { return net.forward(batch.tensor("x"), batch.tensor("y")); };
  EXPECT_THAT([&] { initialize(build, step, config()); }, ThrowsMessage<RuntimeFault>(loaded_before_seed(7)));
}

TEST_F(EarlyDevice, IsThereBeforeAProgramSeedsThatAskedForIt) {
  use_device(config());
  torch::manual_seed(7);

  EXPECT_THAT([&] { initialize(std::make_shared<Line>(), config()); },
              ThrowsMessage<RuntimeFault>(loaded_before_seed(7)));
}

TEST_F(EarlyDevice, LeavesWhatIsWrongInAConfigurationToInitialize) {
  const std::string file = config();
  write_bytes(file, R"({"train_batch_size": 4, "fp16": 3, "capstan": {"run": {"device": "cuda"}}})");

  use_device(file);
  EXPECT_THAT([&] { initialize(std::make_shared<Line>(), file); }, ThrowsMessage<ConfigError>(HasSubstr("fp16: ")));
  EXPECT_THAT([] { use_device("no such file"); }, ThrowsMessage<ConfigError>(HasSubstr("no such file")));
}

}  // namespace
}  // namespace capstan
