#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/sdk/batch.hpp"
#include "capstan/sdk/component.hpp"

/// Metrics of samples: what `capstan analyze` measures, for curricula that begin with the easy ones.
///
///   class Length {
///    public:
///     Length(capstan::sdk::Host host, const capstan::sdk::Params& params);
///     // Once, first. `source`: what the data set says of itself, and "vocabulary" where the model tells it.
///     capstan::sdk::MetricPlan start(const capstan::sdk::Document& source);
///     // optional: the sums of a metric that the plan needs, before the first measure
///     void totals(std::string_view metric, std::span<const std::int64_t> values);
///     // `count` samples, the rows of the batch: out[i] is the number of sample i, or, where the plan has a width, so
///     many
///     // numbers at `out` grow by what the samples have. [any thread]
///     void measure(const capstan::sdk::Batch& samples, std::size_t count, std::int64_t* out) const;
///   };
///   CAPSTAN_PLUGIN(&capstan::sdk::metric<Length, "Length">)
///
/// Numbers are whole: what is not is to be scaled and rounded by the metric. What is thrown ends the analysis with its
/// text.
namespace capstan::sdk {

/// What a metric measures.
struct MetricPlan {
  std::uint64_t width = 0;         // 0: one number a sample; else so many numbers, summed over all samples
  std::vector<std::string> needs;  // metrics with a width, whose sums it needs
};

template <class T>
struct MetricCalls {
  static capstan_status start(void* self, capstan_str source, capstan_sink* sink, capstan_error* error) {
    auto& metric = *static_cast<Instance<T>*>(self);
    return guarded(metric.host, error, [&] {
      const MetricPlan plan = metric.object.start(Document(metric.host, source, error));
      std::string needs;
      for (const std::string& name : plan.needs) needs += (needs.empty() ? "\"" : ", \"") + name + "\"";
      Sink(metric.host, sink).write("{\"width\": " + std::to_string(plan.width) + ", \"needs\": [" + needs + "]}");
    });
  }
  static capstan_status totals(void* self, capstan_str name, const std::int64_t* values, std::size_t count,
                               capstan_error* error) {
    auto& metric = *static_cast<Instance<T>*>(self);
    return guarded(metric.host, error, [&] {
      if constexpr (requires { &T::totals; }) metric.object.totals(to_view(name), std::span(values, count));
    });
  }
  static capstan_status measure(void* self, capstan_batch* samples, std::size_t count, std::int64_t* out,
                                capstan_error* error) {
    const auto& metric = *static_cast<Instance<T>*>(self);
    return guarded(metric.host, error, [&] { metric.object.measure(Batch(metric.host, samples, error), count, out); });
  }
  static constexpr capstan_sample_metric table() {
    capstan_sample_metric made{sizeof(capstan_sample_metric), &start, nullptr, &measure};
    if constexpr (requires { &T::totals; }) made.totals = &totals;
    return made;
  }
  static constexpr capstan_sample_metric kTable = table();
};

/// The descriptor of metric class T.
template <class T, Literal Type>
inline constexpr capstan_component metric = describe<T, "metric", Type>(&MetricCalls<T>::kTable);

}  // namespace capstan::sdk
