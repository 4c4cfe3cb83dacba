#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "capstan/sdk/component.hpp"

/// Tuners: the order in which `capstan tune` tries configurations.
///
///   class Halves {
///    public:
///     Halves(const capstan::sdk::Host& host, const capstan::sdk::Params& params);
///     // Once, first.
///     void start(const capstan::sdk::TuningSpace& space);
///     // Points that it has not chosen before, `most` at most; none: it wants no more. `predictions`: the cost of each
///     // point as the host's model expects it, NaN where there is none.
///     std::vector<std::size_t> ask(std::span<const double> predictions, std::size_t most);
///     // The cost of a point, to be made small, above 0; nothing where the trial failed.
///     void tell(std::size_t point, std::optional<double> cost);
///     // what goes on after a stop, as JSON: both or neither
///     void save(const capstan::sdk::Sink& sink);
///     void load(const capstan::sdk::Document& saved);
///   };
///   CAPSTAN_PLUGIN(&capstan::sdk::tuner<Halves, "halves">)
///
/// The same space, seed and costs must give the same points. Everything runs on one thread.
namespace capstan::sdk {

/// The points among which a tuner chooses. Valid during start().
class TuningSpace {
 public:
  explicit TuningSpace(const capstan_tuning_space* raw) : raw_(raw) {}

  std::size_t points() const { return raw_->point_count; }
  std::size_t features() const { return raw_->feature_count; }
  std::string_view point_name(std::size_t point) const { return to_view(raw_->points[point]); }
  std::string_view feature_name(std::size_t feature) const { return to_view(raw_->features[feature]); }
  /// The features of a point, in the order of their names.
  std::span<const double> values(std::size_t point) const {
    return {raw_->values + point * raw_->feature_count, raw_->feature_count};
  }
  std::size_t budget() const { return raw_->budget; }  // the most points that will be measured
  std::uint64_t seed() const { return raw_->seed; }

 private:
  const capstan_tuning_space* raw_;
};

/// A tuner with the number of points, for the length of what ask() gets.
template <class T>
struct SizedTuner {
  SizedTuner(const Host& host, const Params& params) : tuner(host, params) {}
  void save(const Sink& sink) { tuner.save(sink); }
  void load(const Document& saved) { tuner.load(saved); }

  T tuner;
  std::size_t points = 0;
};

template <class T>
struct TunerCalls {
  using Self = Instance<SizedTuner<T>>;
  static constexpr bool kSaves = requires(T & t, const Sink& sink) { t.save(sink); };
  static constexpr bool kLoads = requires(T & t, const Document& saved) { t.load(saved); };
  static_assert(kSaves == kLoads, "save and load belong together.");

  static capstan_status start(void* self, const capstan_tuning_space* space, capstan_error* error) {
    auto& instance = *static_cast<Self*>(self);
    return guarded(instance.host, error, [&] {
      instance.object.points = space->point_count;
      instance.object.tuner.start(TuningSpace(space));
    });
  }
  static capstan_status ask(void* self, const double* predictions, std::size_t most, std::size_t* points,
                            std::size_t* count, capstan_error* error) {
    auto& instance = *static_cast<Self*>(self);
    return guarded(instance.host, error, [&] {
      const std::vector<std::size_t> chosen =
          instance.object.tuner.ask(std::span(predictions, instance.object.points), most);
      if (chosen.size() > most) throw Error("ask: chose more points than it was asked for");
      std::copy(chosen.begin(), chosen.end(), points);
      *count = chosen.size();
    });
  }
  static capstan_status tell(void* self, const capstan_tuning_result* result, capstan_error* error) {
    auto& instance = *static_cast<Self*>(self);
    return guarded(instance.host, error, [&] {
      instance.object.tuner.tell(result->point, result->measured ? std::optional(result->cost) : std::nullopt);
    });
  }
  static constexpr capstan_tuner table() {
    capstan_tuner made{sizeof(capstan_tuner), &start, &ask, &tell, nullptr, nullptr};
    if constexpr (kSaves) {
      made.save = &SavedCalls<SizedTuner<T>>::save;
      made.load = &SavedCalls<SizedTuner<T>>::load;
    }
    return made;
  }
  static constexpr capstan_tuner kTable = table();
};

/// The descriptor of tuner class T.
template <class T, Literal Type>
inline constexpr capstan_component tuner = describe<SizedTuner<T>, "tuner", Type>(&TunerCalls<T>::kTable);

}  // namespace capstan::sdk
