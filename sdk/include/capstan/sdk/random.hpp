#pragma once

#include <array>
#include <cstdint>
#include <string_view>

/// Random numbers that are functions of what they are for, so that they depend on no order, no rank and no state: the
/// same after a resume, on any number of processes and at any micro-batch size.
namespace capstan::sdk {

/// Philox4x32-10: four random words of a counter of four and a key of two (Salmon, Moraes, Dror, Shaw: Parallel random
/// numbers: as easy as 1, 2, 3; SC 2011, section 3.3; the constants are those of Random123). Pure.
constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = std::uint64_t{0xD2511F53} * counter[0], second = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(second >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(second),
               static_cast<std::uint32_t>(first >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(first)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

/// The random numbers of one purpose, by two indices and a running number.
class RandomStream {
 public:
  /// `purpose` names what the numbers are for ("random_ltd"), so that two users of one seed do not share numbers.
  constexpr RandomStream(std::uint64_t seed, std::string_view purpose) {
    std::uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
    for (const char c : purpose) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
    const std::uint64_t mixed = seed ^ hash;
    key_ = {static_cast<std::uint32_t>(mixed), static_cast<std::uint32_t>(mixed >> 32)};
  }

  /// The key of philox(), for those who compute words() in another way.
  constexpr std::array<std::uint32_t, 2> key() const { return key_; }

  /// Two random words of 64 bits: number `number` (below 2^32) of the place (major, minor), minor below 2^32.
  constexpr std::array<std::uint64_t, 2> words(std::uint64_t major, std::uint32_t minor, std::uint32_t number) const {
    const auto out =
        philox({number, minor, static_cast<std::uint32_t>(major), static_cast<std::uint32_t>(major >> 32)}, key_);
    return {out[0] | std::uint64_t{out[1]} << 32, out[2] | std::uint64_t{out[3]} << 32};
  }

  /// A uniform number from 0 to bound - 1, without bias but for 2^-64: the high word of a product (Lemire 2019).
  constexpr std::uint64_t below(std::uint64_t bound, std::uint64_t major, std::uint32_t minor,
                                std::uint32_t number) const {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>(Wide{words(major, minor, number)[0]} * bound >> 64);
  }

  /// A uniform number in [0, 1), a multiple of 2^-53.
  constexpr double uniform(std::uint64_t major, std::uint32_t minor, std::uint32_t number) const {
    return static_cast<double>(words(major, minor, number)[0] >> 11) * 0x1p-53;
  }

 private:
  std::array<std::uint32_t, 2> key_{};
};

}  // namespace capstan::sdk
