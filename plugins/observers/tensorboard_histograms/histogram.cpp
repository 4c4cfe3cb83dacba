#include "histogram.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "capstan/sdk/floats.hpp"
#include "capstan/sdk/tensor.hpp"

namespace capstan::observers {
namespace {

constexpr std::size_t kBuckets = 64;

/// Calls visit(value) for each element, whatever the strides.
template <class Visit>
void visit_values(const sdk::Values& values, std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides,
                  std::int64_t offset, Visit&& visit) {
  if (sizes.empty()) {
    visit(sdk::value_at(values, static_cast<std::size_t>(offset)));
    return;
  }
  for (std::int64_t i = 0; i < sizes.front(); ++i) {
    if (sizes.size() == 1) {
      visit(sdk::value_at(values, static_cast<std::size_t>(offset + i * strides.front())));
    } else {
      visit_values(values, sizes.subspan(1), strides.subspan(1), offset + i * strides.front(), visit);
    }
  }
}

struct Layout {
  std::vector<std::int64_t> sizes, strides;
};

Layout layout_of(capstan_tensor tensor) {
  std::int64_t dims = 0;
  std::int64_t *sizes = nullptr, *strides = nullptr;
  sdk::detail::check_torch(aoti_torch_get_dim(tensor, &dims), "get_dim");
  sdk::detail::check_torch(aoti_torch_get_sizes(tensor, &sizes), "get_sizes");
  sdk::detail::check_torch(aoti_torch_get_strides(tensor, &strides), "get_strides");
  return {{sizes, sizes + dims}, {strides, strides + dims}};
}

}  // namespace

monitors::Histogram histogram_of(capstan_tensor tensor) {
  if (!sdk::on_cpu(tensor)) return histogram_of(sdk::HostCopy(tensor).tensor());
  monitors::Histogram histogram;
  const sdk::Values values = sdk::values_of(tensor);
  if (values.data == nullptr || !values.is_float()) return histogram;
  const Layout layout = layout_of(tensor);

  float lowest = std::numeric_limits<float>::infinity(), highest = -lowest;
  visit_values(values, layout.sizes, layout.strides, 0, [&](float value) {
    if (!std::isfinite(value)) return;
    lowest = std::min(lowest, value);
    highest = std::max(highest, value);
    histogram.sum += value;
    histogram.sum_of_squares += static_cast<double>(value) * value;
    ++histogram.count;
  });
  if (histogram.count == 0) return histogram;
  histogram.min = lowest;
  histogram.max = highest;
  if (lowest == highest) {
    histogram.limits = {highest};
    histogram.counts = {histogram.count};
    return histogram;
  }
  const double width = (histogram.max - histogram.min) / kBuckets;
  histogram.counts.resize(kBuckets);
  for (std::size_t i = 1; i < kBuckets; ++i) histogram.limits.push_back(histogram.min + width * static_cast<double>(i));
  histogram.limits.push_back(histogram.max);
  visit_values(values, layout.sizes, layout.strides, 0, [&](float value) {
    if (!std::isfinite(value)) return;
    const auto bucket = static_cast<std::size_t>((value - histogram.min) / width);
    ++histogram.counts[std::min(bucket, kBuckets - 1)];
  });
  return histogram;
}

}  // namespace capstan::observers
