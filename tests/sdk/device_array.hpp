#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "capstan/sdk/float_bits.hpp"

namespace capstan::testing {

/// The types of numbers that our kernels take, numbered as they number them.
enum class DeviceType { kFloat32, kBFloat16, kFloat16 };
constexpr DeviceType kDeviceTypes[] = {DeviceType::kFloat32, DeviceType::kBFloat16, DeviceType::kFloat16};

/// Numbers that a kernel reads and writes.
class DeviceArray {
 public:
  DeviceArray(DeviceType type, std::size_t count) : type_(type), count_(count), bytes_(count * width()) {}

  DeviceType type() const { return type_; }
  std::size_t count() const { return count_; }
  void* data() { return bytes_.data(); }
  float operator[](std::size_t i) const {
    if (type_ == DeviceType::kFloat32) {
      float value = 0;
      std::memcpy(&value, bytes_.data() + i * sizeof value, sizeof value);
      return value;
    }
    std::uint16_t bits = 0;
    std::memcpy(&bits, bytes_.data() + i * sizeof bits, sizeof bits);
    return type_ == DeviceType::kBFloat16 ? sdk::from_bfloat16(bits) : sdk::from_float16(bits);
  }
  /// Rounds to the nearest.
  void set(std::size_t i, float value) {
    if (type_ == DeviceType::kFloat32) {
      std::memcpy(bytes_.data() + i * sizeof value, &value, sizeof value);
      return;
    }
    const std::uint16_t bits = type_ == DeviceType::kBFloat16 ? sdk::to_bfloat16(value) : sdk::to_float16(value);
    std::memcpy(bytes_.data() + i * sizeof bits, &bits, sizeof bits);
  }
  bool operator==(const DeviceArray&) const = default;

 private:
  std::size_t width() const { return type_ == DeviceType::kFloat32 ? sizeof(float) : sizeof(std::uint16_t); }

  DeviceType type_;
  std::size_t count_;
  std::vector<unsigned char> bytes_;
};

/// Numbers from `low` to 1.
inline DeviceArray random_array(DeviceType type, std::size_t count, std::mt19937& random, float low = -1) {
  DeviceArray array(type, count);
  std::uniform_real_distribution<float> value(low, 1);
  for (std::size_t i = 0; i < count; ++i) array.set(i, value(random));
  return array;
}

}  // namespace capstan::testing
