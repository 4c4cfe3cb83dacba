#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "core/checkpoint/checkpoint_index.hpp"

namespace capstan::test {

/// Changes a byte of what `rank` has saved of a parameter's state, or of its values: "param".
inline void damage(const std::filesystem::path& checkpoint, int rank, const std::string& parameter,
                   const std::string& state) {
  std::ifstream in(checkpoint / "index.json");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  for (const IndexedTensor& tensor : parse_index(text, "index.json").tensors) {
    if (tensor.parameter != parameter || tensor.state != state) continue;
    if (tensor.file != "rank_0000" + std::to_string(rank) + ".safetensors") continue;
    std::fstream file(checkpoint / tensor.file, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(tensor.begin));
    const int byte = file.peek();
    file.seekp(static_cast<std::streamoff>(tensor.begin));
    file.put(static_cast<char>(byte ^ 1));
  }
}

}  // namespace capstan::test
