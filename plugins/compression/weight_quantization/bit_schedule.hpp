#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace capstan::compression {

/// How many bits weights have as updates are done, and how much of what they were is mixed in: the schedule of MoQ, in
/// the order of the weights.
///
/// A weight loses a bit at the first update that is not before its `next`, down to its target; `next` begins as its
/// period. With a period of 0, each update takes a bit. The share of the values that are not quantised falls by
/// change_ratio an update, from 1 to 0, and is 1 again from the weight on that loses a bit.
class BitSchedule {
 public:
  struct Weight {
    int start_bits = 8, target_bits = 8;
    std::int64_t period = 1;
  };
  struct Drop {
    std::size_t weight = 0;
    int bits = 0;           // from now on
    std::int64_t next = 0;  // before the next drop
  };
  /// The `next` of a weight that loses a bit, of its period, the `next` until then, and a factor: next + period *
  /// factor, without overflow.
  using After = std::function<std::int64_t(std::int64_t period, std::int64_t next, std::int64_t factor)>;
  static std::int64_t evenly(std::int64_t period, std::int64_t next, std::int64_t factor);

  /// `change_ratio`: none where values are not mixed.
  BitSchedule(std::vector<Weight> weights, double change_ratio, After after);

  /// All that one may save: the rest follows from the configuration.
  struct State {
    std::int64_t updates = 0;        // that were counted
    std::int64_t since = 0;          // the last drop of any weight
    std::int64_t since_before = 0;   // the drop before, where the last update had one
    std::size_t dropped = SIZE_MAX;  // the first weight that lost a bit in the last update
    std::vector<int> bits;
    std::vector<std::int64_t> next;
  };
  const State& state() const { return state_; }
  void set_state(State state) { state_ = std::move(state); }

  /// Counts one update. `factor` of a weight: by how much its next period is longer.
  std::vector<Drop> advance(const std::function<std::int64_t(std::size_t)>& factor);
  /// Counts updates up to that number, with factors of 1. What will not change any more takes no time.
  void advance_to(std::int64_t updates);

  int bits(std::size_t weight) const { return state_.bits[weight]; }
  /// How much of the value is that before quantising: 0 to 1.
  double share(std::size_t weight) const;
  /// The bits that weights have still to lose, added up.
  std::int64_t bits_to_fall() const;

 private:
  double share_after(std::int64_t updates) const;

  std::vector<Weight> weights_;
  double change_ratio_;
  After after_;
  State state_;
};

}  // namespace capstan::compression
