#pragma once

#include <cstdint>

namespace capstan::optimizers {

/// When 0/1 Adam adapts the second moment and when its ranks exchange. A function of the number of updates done; kept
/// step by step, so that a run may go on from saved counters.
class ZeroOneSchedule {
 public:
  struct Settings {
    std::int64_t var_freeze_step, var_update_scaler, local_step_scaler, local_step_clipper;
  };
  enum class Kind {
    kFull,        // the mean gradient, uncompressed
    kCompressed,  // this rank's gradient, averaged at one bit an element
    kLocal        // no exchange, or one of the way since the last
  };
  struct Counters {
    std::int64_t updates = 0;  // done before the one that the rest is about
    std::int64_t var_interval = 1, var_counter = 0;
    std::int64_t local_interval = 1, local_counter = 0;
    bool frozen = false;  // the second moment is frozen: only local steps from here on
  };

  explicit ZeroOneSchedule(const Settings& settings) : settings_(settings) {}

  /// Goes to update `update_index`, the first being 0.
  void go_to(std::int64_t update_index) {
    if (update_index < counters_.updates) counters_ = Counters();
    while (counters_.updates < update_index) finish_update();
  }

  Kind kind() const {
    if (counters_.frozen) return Kind::kLocal;
    return number() % counters_.var_interval == 0 ? Kind::kFull : Kind::kCompressed;
  }
  /// Whether a local step ends with an exchange.
  bool exchanges() const { return number() % counters_.local_interval == 0; }

  const Counters& counters() const { return counters_; }
  void restore(const Counters& counters) { counters_ = counters; }

 private:
  std::int64_t number() const { return counters_.updates + 1; }

  void finish_update() {
    if (counters_.frozen) {
      if (++counters_.local_counter == settings_.local_step_scaler) {
        counters_.local_counter = 0;
        counters_.local_interval = 2 * counters_.local_interval < settings_.local_step_clipper
                                       ? 2 * counters_.local_interval
                                       : settings_.local_step_clipper;
      }
    } else if (kind() == Kind::kFull && ++counters_.var_counter == settings_.var_update_scaler) {
      counters_.var_counter = 0;
      counters_.var_interval *= 2;
    }
    if (number() > settings_.var_freeze_step) counters_.frozen = true;
    ++counters_.updates;
  }

  Settings settings_;
  Counters counters_;
};

}  // namespace capstan::optimizers
