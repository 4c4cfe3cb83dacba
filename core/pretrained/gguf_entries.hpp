#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "core/pretrained/gguf_header.hpp"

namespace capstan {

/// Arrays of a GGUF file's metadata, encoded as the file has them.
class GgufEntries {
 public:
  void add(const std::string& key, const std::vector<std::string>& texts);
  void add(const std::string& key, const std::vector<std::int32_t>& numbers);
  void add(const std::string& key, const std::vector<float>& numbers);

  /// The entries, whose views point into this object.
  std::vector<GgufEntry> all() const;

 private:
  struct Owned {
    std::string key, value;
    std::uint64_t elements;
  };
  std::deque<Owned> owned_;
};

}  // namespace capstan
