#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <vector>

#include "tests/support/temporary_folder.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace capstan {
namespace {

std::vector<std::string> corpus() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(
           CAPSTAN_TEST_SOURCE_DIR "/tests/core/elastic/launcher/launcher_messages_corpus")) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> inputs;
  for (const auto& file : files) inputs.push_back(read_bytes(file));
  return inputs;
}

void replay(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
}

TEST(LauncherMessagesReplay, SurvivesTheCorpus) {
  const auto inputs = corpus();
  ASSERT_GE(inputs.size(), 10U);
  for (const auto& input : inputs) replay(input);
}

TEST(LauncherMessagesReplay, SurvivesMutationsOfTheCorpus) {
  const auto inputs = corpus();
  std::mt19937 random(42);
  for (int round = 0; round < 20'000; ++round) {
    std::string input = inputs[random() % inputs.size()];
    for (unsigned edit = 0, edits = 1 + random() % 4; edit < edits && input.size() > 1; ++edit) {
      const std::size_t place = 1 + random() % (input.size() - 1);
      switch (random() % 3) {
        case 0:
          input[place] = static_cast<char>(random());
          break;
        case 1:
          input.insert(place, input.substr(1 + random() % (input.size() - 1), 1 + random() % 16));
          break;
        default:
          input.erase(place, 1 + random() % 8);
          break;
      }
    }
    replay(input);
  }
}

}  // namespace
}  // namespace capstan
