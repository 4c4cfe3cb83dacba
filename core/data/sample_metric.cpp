#include "core/data/sample_metric.hpp"

#include "core/errors.hpp"

namespace capstan {
namespace {

/// A vector of a metric lies in memory once a shard.
constexpr std::int64_t kWidest = std::int64_t{1} << 26;

}  // namespace

SampleMetric::SampleMetric(Component component, const Json& source)
    : component_(std::move(component)), where_("metric '" + component_.manifest().type + "'") {
  const std::string told = source.dump();
  const auto* table = component_.vtable<capstan_sample_metric>();
  const Json plan =
      Json::parse(plugin_text(component_.function("start"), where_, [&](capstan_sink* sink, capstan_error* error) {
        return table->start(component_.self(), as_str(told), sink, error);
      }));
  if (const Json* width = plan.find("width")) {
    if (!width->is_integer() || width->as_integer() < 0 || width->as_integer() > kWidest) {
      throw PluginError(where_ + ", start: \"width\" must be from 0 to " + std::to_string(kWidest) + ", got " +
                        width->dump() + ". Ask the plugin's author.");
    }
    width_ = static_cast<std::uint64_t>(width->as_integer());
  }
  if (const Json* needs = plan.find("needs"); needs && needs->is_array()) {
    for (const Json& name : needs->as_array()) needs_.push_back(name.as_string());
  }
}

void SampleMetric::take_totals(const std::string& metric, std::span<const std::int64_t> values) {
  const auto* table = component_.vtable<capstan_sample_metric>();
  if (!CAPSTAN_HAS(table, totals)) return;
  call_plugin(component_.function("totals"), where_, [&](capstan_error* error) {
    return table->totals(component_.self(), as_str(metric), values.data(), values.size(), error);
  });
}

void SampleMetric::measure(Batch& samples, std::size_t count, std::int64_t* out) const {
  call_plugin(component_.function("measure"), where_, [&](capstan_error* error) {
    return component_.vtable<capstan_sample_metric>()->measure(component_.self(), &samples, count, out, error);
  });
}

}  // namespace capstan
