// AdamW with moments of 8 bits an element (Dettmers et al. 2021, "8-bit Optimizers via Block-wise Quantization"): a
// moment is a code of a fixed table times the largest absolute value of its block of 2048 elements. The update itself
// is computed in 32 bits.
#include <algorithm>
#include <array>
#include <capstan/sdk/floats.hpp>
#include <capstan/sdk/optimizer.hpp>
#include <capstan/sdk/parallel.hpp>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

namespace sdk = capstan::sdk;

// The states, in the order of plugin.toml.
enum State : std::size_t { kStep, kExpAvgCode, kExpAvgScale, kExpAvgSqCode, kExpAvgSqScale, kExpAvg, kExpAvgSq };

constexpr std::size_t kBlock = 2048;  // elements, as in plugin.toml
constexpr std::int64_t kGrain = 8;    // blocks that one thread should at least have to do

/// The paper's dynamic tree: 256 numbers of seven decades from 0 to 1, more of them in the higher decades; with a sign,
/// half of them are below 0.
class Table {
 public:
  explicit Table(bool has_sign) {
    std::vector<double> numbers = {0.0, 1.0};
    double decade = 1e-6;
    for (int bits = 0; bits < 7; ++bits, decade *= 10) {
      const int count = 1 << (has_sign ? bits : bits + 1);
      for (int i = 0; i < count; ++i) {
        const double number = decade * (0.1 + 0.9 * (i + 0.5) / count);
        numbers.push_back(number);
        if (has_sign) numbers.push_back(-number);
      }
    }
    std::sort(numbers.begin(), numbers.end());
    std::copy(numbers.begin(), numbers.end(), numbers_.begin());
    for (std::size_t i = 0; i < borders_.size(); ++i) {
      borders_[i] = (static_cast<double>(numbers_[i]) + static_cast<double>(numbers_[i + 1])) / 2;
    }
  }

  float number(std::uint8_t code) const { return numbers_[code]; }
  /// The code of the nearest number; of two as near the lower one.
  std::uint8_t code(float number) const {
    std::size_t code = 0;
    for (std::size_t step = 128; step > 0; step /= 2) {
      if (number > borders_[code + step - 1]) code += step;
    }
    return static_cast<std::uint8_t>(code);
  }

 private:
  std::array<float, 256> numbers_{};
  std::array<double, 255> borders_{};
};

/// One moment of a slot.
struct Moment {
  const Table& table;
  std::uint8_t* codes;
  float* scales;

  void read(std::size_t block, std::size_t count, float* out) const {
    const std::uint8_t* from = codes + block * kBlock;
    for (std::size_t i = 0; i < count; ++i) out[i] = table.number(from[i]) * scales[block];
  }
  void write(std::size_t block, std::size_t count, const float* values) const {
    float largest = 0;
    for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(values[i]));
    scales[block] = largest;
    std::uint8_t* to = codes + block * kBlock;
    for (std::size_t i = 0; i < count; ++i) to[i] = table.code(largest > 0 ? values[i] / largest : 0.0f);
  }
};

struct Numbers {
  float lr, beta1, beta2, eps, weight_decay;
};

/// What one update multiplies by.
struct Factors {
  Factors(const Numbers& numbers, std::int64_t step, double scale)
      : numbers(numbers), grad_scale(static_cast<float>(scale)) {
    const auto power = static_cast<double>(step);
    step_size = static_cast<float>(numbers.lr / (1 - std::pow(static_cast<double>(numbers.beta1), power)));
    root = static_cast<float>(std::sqrt(1 - std::pow(static_cast<double>(numbers.beta2), power)));
    keep = 1.0f - numbers.lr * numbers.weight_decay;
  }

  /// Updates one element and its moments.
  void apply(float gradient, float& weight, float& mean, float& square) const {
    gradient *= grad_scale;
    mean = numbers.beta1 * mean + (1.0f - numbers.beta1) * gradient;
    square = numbers.beta2 * square + (1.0f - numbers.beta2) * gradient * gradient;
    weight = weight * keep - step_size * mean / (std::sqrt(square) / root + numbers.eps);
  }

  Numbers numbers;
  float grad_scale, step_size, root, keep;
};

class Adam8bit {
 public:
  Adam8bit(const sdk::Host&, const sdk::Params&) {}

  void update(const sdk::Slots& slots, const sdk::Step& step) {
    const auto numbers = step.each_group([](const sdk::Group& group) {
      double betas[2];
      group.read("betas", betas, 2);
      return Numbers{static_cast<float>(group.number("lr")), static_cast<float>(betas[0]), static_cast<float>(betas[1]),
                     static_cast<float>(group.number("eps")), static_cast<float>(group.number("weight_decay"))};
    });
    for (const sdk::Slot slot : slots) {
      const Factors factors(numbers[slot.group()], ++slot.counter(kStep), step.grad_scale());
      slot.has_state(kExpAvg) ? update_whole(slot, factors) : update_blocks(slot, factors);
    }
  }

 private:
  static void update_whole(const sdk::Slot& slot, const Factors& factors) {
    float *weights = slot.param(), *means = slot.floats(kExpAvg), *squares = slot.floats(kExpAvgSq);
    const sdk::Values gradients = slot.grad();
    for (std::size_t i = 0; i < slot.numel(); ++i) {
      factors.apply(sdk::value_at(gradients, i), weights[i], means[i], squares[i]);
    }
  }

  void update_blocks(const sdk::Slot& slot, const Factors& factors) const {
    float* weights = slot.param();
    const sdk::Values gradients = slot.grad();
    const Moment first{signed_, slot.bytes(kExpAvgCode), slot.floats(kExpAvgScale)};
    const Moment second{unsigned_, slot.bytes(kExpAvgSqCode), slot.floats(kExpAvgSqScale)};
    // A slot begins where a block begins, so that its blocks are the same however a parameter is cut.
    const auto blocks = static_cast<std::int64_t>(slot.blocks(kBlock));
    sdk::parallel_for(0, blocks, kGrain, [&](std::int64_t begin, std::int64_t end) {
      std::array<float, kBlock> means, squares;
      for (auto block = static_cast<std::size_t>(begin); block < static_cast<std::size_t>(end); ++block) {
        const std::size_t from = block * kBlock, count = std::min(kBlock, slot.numel() - from);
        first.read(block, count, means.data());
        second.read(block, count, squares.data());
        for (std::size_t i = 0; i < count; ++i) {
          factors.apply(sdk::value_at(gradients, from + i), weights[from + i], means[i], squares[i]);
        }
        first.write(block, count, means.data());
        second.write(block, count, squares.data());
      }
    });
  }

  Table signed_{true}, unsigned_{false};
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<Adam8bit, "Adam8bit">)
