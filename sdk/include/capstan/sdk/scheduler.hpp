#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "capstan/sdk/component.hpp"

/// A schedule is an ordinary class, a pure function of the index of the update:
///
///   class RampLR {
///    public:
///     RampLR(const sdk::Host&, const sdk::Params&);
///     /// The rate that update `update_index` (0 for the first) of group `group` runs at.
///     double rate(std::int64_t update_index, std::uint32_t group, double base_lr) const;
///
///     // optional
///     void start(const sdk::ScheduleStart& start);  // once, first
///     sdk::Betas momentum(std::int64_t update_index, std::uint32_t group, sdk::Betas configured) const;
///     void save(const sdk::Sink& sink);
///     void load(const sdk::Document& saved);
///   };
///   CAPSTAN_PLUGIN(&capstan::sdk::scheduler<RampLR, "RampLR">)
namespace capstan::sdk {

struct Betas {
  double beta1, beta2;
};

/// What a schedule may want to check when the engine is built.
class ScheduleStart {
 public:
  explicit ScheduleStart(const capstan_schedule_start* raw) : raw_(raw) {}

  std::uint32_t group_count() const { return raw_->group_count; }
  /// One a group, as configured.
  std::span<const double> base_lrs() const { return {raw_->base_lrs, raw_->group_count}; }
  bool optimizer_has_betas() const { return raw_->optimizer_has_betas != 0; }
  /// The betas of group 0. Call it only where the optimizer has betas.
  Betas betas() const { return {raw_->betas[0], raw_->betas[1]}; }

 private:
  const capstan_schedule_start* raw_;
};

namespace detail {

template <class T>
struct SchedulerCalls {
  static capstan_status rate(void* self, std::int64_t update_index, std::uint32_t group, double base_lr, double* out,
                             capstan_error* error) {
    auto* instance = static_cast<Instance<T>*>(self);
    return guarded(instance->host, error, [&] { *out = instance->object.rate(update_index, group, base_lr); });
  }
  static capstan_status momentum(void* self, std::int64_t update_index, std::uint32_t group, double* betas,
                                 capstan_error* error) {
    auto* instance = static_cast<Instance<T>*>(self);
    return guarded(instance->host, error, [&] {
      const Betas changed = instance->object.momentum(update_index, group, Betas{betas[0], betas[1]});
      betas[0] = changed.beta1;
      betas[1] = changed.beta2;
    });
  }
  static capstan_status start(void* self, const capstan_schedule_start* start, capstan_error* error) {
    auto* instance = static_cast<Instance<T>*>(self);
    return guarded(instance->host, error, [&] { instance->object.start(ScheduleStart(start)); });
  }
};

template <class T>
constexpr capstan_scheduler scheduler_vtable() {
  using Calls = SchedulerCalls<T>;
  capstan_scheduler table{sizeof(capstan_scheduler), &Calls::rate};
  if constexpr (requires { &T::momentum; }) table.momentum = &Calls::momentum;
  if constexpr (requires { &T::start; }) table.start = &Calls::start;
  if constexpr (requires { &T::save; }) table.save = &SavedCalls<T>::save;
  if constexpr (requires { &T::load; }) table.load = &SavedCalls<T>::load;
  return table;
}

template <class T>
inline constexpr capstan_scheduler kScheduler = scheduler_vtable<T>();

}  // namespace detail

/// The descriptor of schedule class `T`, for CAPSTAN_PLUGIN.
template <class T, Literal Type>
inline constexpr capstan_component scheduler = describe<T, "scheduler", Type>(&detail::kScheduler<T>);

}  // namespace capstan::sdk
