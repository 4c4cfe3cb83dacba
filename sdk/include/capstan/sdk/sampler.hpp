#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "capstan/sdk/batch.hpp"
#include "capstan/sdk/component.hpp"

/// Samplers: which samples of the data a training step takes.
///
///   class Rounds {
///    public:
///     Rounds(capstan::sdk::Host host, const capstan::sdk::Params& params);
///     // Once, first: how much data there is.
///     void start(const capstan::sdk::Sampling& sampling);
///     // The samples of a step, 0 for the first, of all ranks. Steps come in order.
///     void next(std::int64_t step, std::span<std::int64_t> samples);
///     // optional: changes the micro-batches of the step whose samples next() gave last
///     void batch(capstan::sdk::Batch& batch);
///     // what a checkpoint must keep, as JSON: both or neither
///     void save(const capstan::sdk::Sink& sink);
///     void load(const capstan::sdk::Document& saved);
///   };
///   CAPSTAN_PLUGIN(&capstan::sdk::sampler<Rounds, "Rounds">)
///
/// Every rank has a sampler of its own, and all of them must give the same samples: by the seed and the step
/// (capstan/sdk/random.hpp), without communication, clock or shared random numbers. What is thrown ends the run with
/// its text. Everything runs on the engine's thread.
namespace capstan::sdk {

/// What a sampler orders. Valid during start().
class Sampling {
 public:
  explicit Sampling(const capstan_sampling* raw) : raw_(raw) {}

  std::int64_t samples() const { return raw_->samples; }  // of the data set
  std::int64_t batch() const { return raw_->batch; }      // samples of a step over all ranks
  std::uint64_t seed() const { return raw_->seed; }
  std::string_view fingerprint() const { return to_view(raw_->fingerprint); }  // of the data set

 private:
  const capstan_sampling* raw_;
};

/// A sampler with the length of what next() fills.
template <class T>
struct SizedSampler {
  SizedSampler(Host host, const Params& params) : sampler(host, params) {}
  void save(const Sink& sink) { sampler.save(sink); }
  void load(const Document& saved) { sampler.load(saved); }

  T sampler;
  std::size_t batch = 0;
};

template <class T>
struct SamplerCalls {
  using Self = Instance<SizedSampler<T>>;
  static constexpr bool kSaves = requires(T & t, const Sink& sink) { t.save(sink); };
  static constexpr bool kLoads = requires(T & t, const Document& saved) { t.load(saved); };
  static_assert(kSaves == kLoads, "save and load belong together.");

  static capstan_status start(void* self, const capstan_sampling* sampling, capstan_error* error) {
    auto& instance = *static_cast<Self*>(self);
    return guarded(instance.host, error, [&] {
      instance.object.batch = static_cast<std::size_t>(sampling->batch);
      instance.object.sampler.start(Sampling(sampling));
    });
  }
  static capstan_status next(void* self, std::int64_t step, std::int64_t* samples, capstan_error* error) {
    auto& instance = *static_cast<Self*>(self);
    return guarded(instance.host, error,
                   [&] { instance.object.sampler.next(step, std::span(samples, instance.object.batch)); });
  }
  static capstan_status batch(void* self, capstan_batch* batch, capstan_error* error) {
    auto& instance = *static_cast<Self*>(self);
    return guarded(instance.host, error, [&] {
      Batch view(instance.host, batch, error);
      if constexpr (requires { instance.object.sampler.batch(view); }) instance.object.sampler.batch(view);
    });
  }
  static constexpr capstan_sampler table() {
    capstan_sampler made{sizeof(capstan_sampler), &start, &next, nullptr, nullptr, nullptr};
    if constexpr (requires(T & t, Batch & view) { t.batch(view); }) made.batch = &batch;
    if constexpr (kSaves) {
      made.save = &SavedCalls<SizedSampler<T>>::save;
      made.load = &SavedCalls<SizedSampler<T>>::load;
    }
    return made;
  }
  static constexpr capstan_sampler kTable = table();
};

/// The descriptor of sampler class T.
template <class T, Literal Type>
inline constexpr capstan_component sampler = describe<SizedSampler<T>, "sampler", Type>(&SamplerCalls<T>::kTable);

}  // namespace capstan::sdk
