// The readers of what stands in a checkpoint's files, for libFuzzer and for readers_replay_test.
//
// The first byte picks the reader. A reader returns or throws RuntimeFault; anything else is a bug. To look for inputs:
//   cmake -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ && ninja -C build/fuzz readers_fuzzer
//   build/fuzz/tests/readers_fuzzer -max_len=2048 NEW_FOLDER tests/core/checkpoint/corpus

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/checkpoint/checkpoint_index.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/checkpoint/state_text.hpp"
#include "core/xxh3.hpp"
#include "core/errors.hpp"

namespace capstan {
namespace {

/// Puts the right checksum behind an index, for otherwise nothing but the check of it would be met.
std::string sealed(std::string_view body) {
  return std::string(body) + ",\n\"index_xxh3\": \"" + hex(xxh3(body.data(), body.size())) + "\"\n}\n";
}

void read(char reader, std::string_view text) {
  switch (reader) {
    case 'h': {
      const std::uint64_t length = text.size();
      std::string file(reinterpret_cast<const char*>(&length), 8);
      file += text;
      file.append(64, '\0');
      parse_safetensors_header(reinterpret_cast<const std::byte*>(file.data()), file.size(), "file");
      break;
    }
    case 'f':
      parse_safetensors_header(reinterpret_cast<const std::byte*>(text.data()), text.size(), "file");
      break;
    case 'i':
      parse_index(sealed(text), "file");
      break;
    case 's':
      parse_state(text, "file");
      break;
    default:
      break;
  }
}

}  // namespace
}  // namespace capstan

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    capstan::read(input.front(), input.substr(1));
  } catch (const capstan::RuntimeFault&) {
  }
  return 0;
}
