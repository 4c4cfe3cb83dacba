#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace capstan::cli {

/// The rows of one metric: x in samples, and the value, which may be no number.
using Series = std::vector<std::pair<std::int64_t, double>>;

/// A page that needs nothing but itself: the metrics of a run, by name ("Train_Samples_lr"), as plots and as a table.
std::string report_page(const std::string& title, const std::map<std::string, Series>& metrics);

/// One plot as SVG: lines, or areas one upon the other when `stacked`. Of many points, the least and the greatest of
/// each part of the width are drawn.
std::string plot_svg(const std::vector<std::pair<std::string, const Series*>>& lines, bool stacked);

}  // namespace capstan::cli
