// Feeds the readers what the fuzzer started from and what it has found: corpus/ beside this file.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "tests/core/data/temporary_folder.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace capstan {
namespace {

void feed(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
}

TEST(ReadersReplay, NoInputOfTheCorpusNorAnyByteOfItChangedDoesHarm) {
  int inputs = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(CAPSTAN_TEST_SOURCE_DIR "/tests/core/checkpoint/corpus")) {
    SCOPED_TRACE(entry.path());
    ++inputs;
    const std::string input = test::read_bytes(entry.path());
    feed(input);
    for (std::size_t i = 1; i < input.size(); ++i) {
      feed(input.substr(0, i));
      for (const char changed : {'\0', '"', '9', '-', '[', '}', '\xff'}) {
        std::string other = input;
        other[i] = changed;
        feed(other);
      }
    }
  }
  EXPECT_GE(inputs, 33);
}

}  // namespace
}  // namespace capstan
