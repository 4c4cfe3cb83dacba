#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace capstan {

/// XXH3-64 over pieces, in order.
class Xxh3 {
 public:
  Xxh3();
  ~Xxh3();
  void update(const void* bytes, std::size_t count);
  std::uint64_t digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// XXH3-64 of one piece.
std::uint64_t xxh3(const void* bytes, std::size_t count);

/// Sixteen lower-case hexadecimal digits: how a digest stands in JSON, whose integers are signed.
std::string hex(std::uint64_t value);

}  // namespace capstan
