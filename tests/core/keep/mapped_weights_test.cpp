#include "core/keep/mapped_weights.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/core/engine/small_model.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

using testing_support::SmallRun;

/// Whether the tensor's values are pages of the file.
bool is_in_file(const at::Tensor& tensor, const std::filesystem::path& file) {
  std::ifstream maps("/proc/self/maps");
  const auto place = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  for (std::string line; std::getline(maps, line);) {
    if (!line.ends_with(std::filesystem::canonical(file).string())) continue;
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::istringstream(line) >> std::hex >> begin >> dash >> end;
    if (begin <= place && place < end) return true;
  }
  return false;
}

class MappedWeightsTest : public ::testing::Test {
 protected:
  /// Values for all parameters of a run, in its file.
  std::map<std::string, at::Tensor> written_for(const SmallRun& run) {
    std::map<std::string, at::Tensor> values;
    std::vector<SafetensorsEntry> entries;
    for (const NamedTensor& one : run.model.parameters) {
      const at::Tensor filled = at::arange(one.tensor.numel(), at::kFloat).div(7).view(one.tensor.sizes()).clone();
      values.emplace(one.name, filled);
      entries.push_back({one.name, filled});
    }
    write_safetensors(file, entries);
    return values;
  }

  const at::NoGradGuard no_grad_;
  TemporaryFolder folder_;
  std::filesystem::path file = std::filesystem::path(folder_.path()) / "weights.safetensors";
};

TEST_F(MappedWeightsTest, StayInTheirFileWhereNothingIsUpdatedAndTheProgramWantsIt) {
  SmallRun run(R"({"train_batch_size": 4})");
  const auto values = written_for(run);
  run.engine.load_weights(file.string());
  for (const NamedTensor& one : run.model.parameters) EXPECT_FALSE(is_in_file(one.tensor, file)) << one.name;
  leave_weights_in_files();
  run.engine.load_weights(file.string());
  int mapped = 0;
  for (const NamedTensor& one : run.model.parameters) {
    EXPECT_TRUE(one.tensor.equal(values.at(one.name))) << one.name;
    mapped += is_in_file(one.tensor, file) ? 1 : 0;
  }
  EXPECT_GE(mapped, 3);
}

TEST_F(MappedWeightsTest, AreCopiedWhereTheyAreWritten) {
  SmallRun run(R"({"train_batch_size": 4})");
  const auto values = written_for(run);
  run.engine.load_weights(file.string());
  for (const NamedTensor& one : run.model.parameters) one.tensor.detach().fill_(3);
  for (const SafetensorsEntry& entry : read_safetensors(file)) {
    EXPECT_TRUE(entry.values.equal(values.at(entry.name))) << entry.name;
  }
  // And again from the file.
  run.engine.load_weights(file.string());
  for (const NamedTensor& one : run.model.parameters) EXPECT_TRUE(one.tensor.equal(values.at(one.name))) << one.name;
}

TEST_F(MappedWeightsTest, AreTheEnginesOwnWhereItUpdatesThem) {
  SmallRun run(R"({"train_batch_size": 4, "optimizer": {"type": "Adam", "params": {"lr": 0.01}}})");
  written_for(run);
  run.engine.load_weights(file.string());
  for (const NamedTensor& one : run.model.parameters) EXPECT_FALSE(is_in_file(one.tensor, file)) << one.name;
}

TEST_F(MappedWeightsTest, LeaveWhatIsNoPageOfAFileOrAnothersOrOfAnotherType) {
  const at::Tensor written = at::arange(1000, at::kFloat);
  write_safetensors(file, {{"one", written}});
  const SafetensorsEntry entry = read_safetensors(file).front();
  const auto parameter = [](at::ScalarType type) {
    ParameterEntry made;
    made.parameter = at::full({1000}, 5, type);
    return made;
  };
  MappedWeights mapped;
  EXPECT_FALSE(mapped.take(parameter(at::kFloat), {"one", written}));
  EXPECT_FALSE(mapped.take(parameter(at::kBFloat16), entry));
  ParameterEntry separate = parameter(at::kFloat);
  separate.separate = true;
  EXPECT_FALSE(mapped.take(separate, entry));
  const ParameterEntry first = parameter(at::kFloat), second = parameter(at::kFloat);
  EXPECT_TRUE(mapped.take(first, entry));
  EXPECT_FALSE(mapped.take(second, entry));
  EXPECT_TRUE(first.parameter.equal(written));
  EXPECT_EQ(second.parameter.min().item<float>(), 5);
}

}  // namespace
}  // namespace capstan
