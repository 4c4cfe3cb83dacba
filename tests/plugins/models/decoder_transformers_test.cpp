// Small models that transformers makes, computed here: equal bits of logits, losses and gradients.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "core/checkpoint/gguf_tensors.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "tests/plugins/models/built_model.hpp"
#include "tests/support/assets.hpp"
#include "tests/support/process.hpp"
#include "tests/support/readers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, at::Tensor>;

Tensors tensors_of(const fs::path& file) {
  Tensors tensors;
  for (const SafetensorsEntry& entry : read_safetensors(file)) tensors.emplace(entry.name, entry.values);
  return tensors;
}

/// The model of a folder, as the plugin's file has it.
Model model_of(const fs::path& folder) {
  Json params = Json::object();
  params["config"] = Json::parse(read_bytes(folder / "config.json"));
  Model model = testing::built_model("decoder", params);
  const Tensors weights = tensors_of(folder / "model.safetensors");
  const at::NoGradGuard no_grad;
  EXPECT_EQ(model.parameters().size(), weights.size()) << folder;
  for (const NamedTensor& parameter : model.parameters()) parameter.tensor.copy_(weights.at(parameter.name));
  return model;
}

at::Tensor seen_logits;

/// Keeps what the loss is computed from while it lives.
class LogitsSeen {
 public:
  LogitsSeen()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
              if (std::string_view(function.name()) == "aten::cross_entropy_loss") {
                seen_logits = function.inputs()[0].toTensor().detach();
              }
              return nullptr;
            }).needsInputs(true))) {}
  ~LogitsSeen() { at::removeCallback(handle_); }
  LogitsSeen(const LogitsSeen&) = delete;

 private:
  at::CallbackHandle handle_;
};

void expect_equal(const at::Tensor& ours, const at::Tensor& theirs, const std::string& what) {
  const at::Tensor difference = (ours.to(at::kDouble) - theirs.to(at::kDouble)).abs().max();
  EXPECT_TRUE(ours.equal(theirs)) << what << ": apart by " << difference.item<double>() << " of "
                                  << theirs.abs().max().item<double>();
}

void expect_as_transformers(const fs::path& folder, at::ScalarType dtype, const std::string& prefix) {
  Model model = model_of(folder);
  for (const NamedTensor& one : model.parameters()) one.tensor.set_data(one.tensor.data().to(dtype));
  const Tensors reference = tensors_of(folder / "reference.safetensors");
  Batch batch;
  batch.tensors = {{"input_ids", reference.at("ids").clone()}, {"labels", reference.at("labels").clone()}};

  at::Tensor loss;
  {
    const LogitsSeen seen;
    loss = model.forward(batch);
  }
  loss.backward();

  const at::Tensor logits = reference.at(prefix + "logits").to(at::kFloat);  // exact for bf16
  expect_equal(seen_logits.view_as(logits), logits, "logits");
  expect_equal(loss.detach(), reference.at(prefix + "loss"), "loss");
  for (const NamedTensor& parameter : model.parameters()) {
    expect_equal(parameter.tensor.grad(), reference.at(prefix + "gradient." + parameter.name), parameter.name);
  }
}

TEST(DecoderBesideTransformers, GivesItsLogitsAndGradientsBitForBit) {
  const std::string python = test::reader_program("python", "CAPSTAN_TRANSFORMERS_PYTHON");
  if (python.empty()) GTEST_SKIP() << test::kNoReaders;
  const TemporaryFolder folder;
  const ProcessResult made =
      run_process({python, "-W", "ignore", CAPSTAN_TEST_SOURCE_DIR "/tests/plugins/models/decoder_reference.py",
                   folder.path().string()});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  at::set_num_threads(1);  // as the script

  std::size_t models = 0;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    const std::string name = entry.path().filename();
    {
      SCOPED_TRACE(name + " in fp32");
      expect_as_transformers(entry.path(), at::kFloat, "fp32.");
    }
    SCOPED_TRACE(name + " in bf16");
    expect_as_transformers(entry.path(), at::kBFloat16, "bf16.");
    ++models;
  }
  EXPECT_EQ(models, 22u);
}

/// SmolLM2 of .venv-assets on 256 tokens of the GPL: weights out of the GGUF file as each side unpacks them.
TEST(DecoderBesideTransformers, GivesTheLogitsAndGradientsOfARealModel) {
  const std::string assets = test::assets_folder();
  const std::string python = test::reader_program("python", "CAPSTAN_TRANSFORMERS_PYTHON");
  if (assets.empty()) GTEST_SKIP() << test::kNoAssets;
  if (python.empty()) GTEST_SKIP() << test::kNoReaders;
  const TemporaryFolder folder;
  const ProcessResult made =
      run_process({python, "-W", "ignore", CAPSTAN_TEST_SOURCE_DIR "/tests/plugins/models/smollm2_reference.py", assets,
                   folder.path().string()});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  at::set_num_threads(1);  // as the script

  const GgufWeights file(read_bytes(folder / "path"));
  Json params = Json::object();
  params["config"] = file.config();
  Model model = testing::built_model("decoder", params);
  std::vector<std::string> names;
  for (const NamedTensor& parameter : model.parameters()) names.push_back(parameter.name);
  ASSERT_EQ(names.size(), 272u);
  {
    const at::NoGradGuard no_grad;
    const auto weights = file.read(names);
    for (const NamedTensor& parameter : model.parameters()) {
      const SafetensorsEntry& entry = weights.at(parameter.name);
      parameter.tensor.copy_(entry.read ? entry.read(0, entry.values.numel()).view(entry.values.sizes())
                                        : entry.values);
    }
  }
  const Tensors reference = tensors_of(folder / "reference.safetensors");
  Batch batch;
  batch.tensors = {{"input_ids", reference.at("ids").clone()}, {"labels", reference.at("labels").clone()}};
  at::Tensor loss;
  {
    const LogitsSeen seen;
    loss = model.forward(batch);
  }
  loss.backward();
  const auto expect_near = [](const at::Tensor& ours, const at::Tensor& theirs, const std::string& what) {
    const at::Tensor difference = (ours.to(at::kDouble) - theirs.to(at::kDouble)).abs().max();
    const double largest = theirs.abs().max().item<double>();
    EXPECT_LE(difference.item<double>(), 1e-6 * largest) << what;
  };
  expect_near(seen_logits.view_as(reference.at("fp32.logits")), reference.at("fp32.logits"), "logits");
  expect_near(loss.detach(), reference.at("fp32.loss"), "loss");
  for (const NamedTensor& parameter : model.parameters()) {
    expect_near(parameter.tensor.grad(), reference.at("fp32.gradient." + parameter.name), parameter.name);
  }
}

}  // namespace
}  // namespace capstan
