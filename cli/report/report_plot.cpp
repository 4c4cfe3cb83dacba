#include <algorithm>
#include <cmath>
#include <limits>

#include "cli/report/report.hpp"
#include "core/text/numbers.hpp"

namespace capstan::cli {
namespace {

constexpr double kWidth = 720, kHeight = 260, kLeft = 64, kRight = 12, kTop = 10, kBottom = 34;
constexpr std::size_t kColumns = 600;  // parts of the width that points are thinned to

/// A place in the picture.
std::string at(double place) { return fixed(place, 1); }

/// A number beside an axis: "0.0003", "12.5k", "3e-07".
std::string mark_text(double value) {
  const double size = std::abs(value);
  if (size >= 1e9) return short_number(value / 1e9) + "G";
  if (size >= 1e6) return short_number(value / 1e6) + "M";
  return size >= 1e4 ? short_number(value / 1e3) + "k" : short_number(value);
}

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;

  void add(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  /// Something to draw in, also for one value or none.
  void widen() {
    if (low > high) low = 0, high = 1;
    if (low == high) {
      const double room = low == 0 ? 1 : std::abs(low) * 0.1;
      low -= room;
      high += room;
    }
  }
};

/// Round numbers that divide the range into about five.
std::vector<double> ticks(const Range& range) {
  const double rough = (range.high - range.low) / 5, power = std::pow(10, std::floor(std::log10(rough)));
  double step = power;
  for (const double factor : {2.0, 5.0, 10.0}) {
    if (step < rough) step = factor * power;
  }
  std::vector<double> out;
  for (double i = std::ceil(range.low / step); i * step <= range.high + step * 1e-9 && out.size() < 20; ++i) {
    out.push_back(i * step);
  }
  return out;
}

struct Frame {
  Range x, y;
  double left(double value) const { return kLeft + (value - x.low) / (x.high - x.low) * (kWidth - kLeft - kRight); }
  double top(double value) const {
    return kHeight - kBottom - (value - y.low) / (y.high - y.low) * (kHeight - kTop - kBottom);
  }
  std::string point(double sample, double value) const { return at(left(sample)) + "," + at(top(value)); }
};

/// Keeps, for each part of the width, the first point with the least and the first with the greatest value, in order.
Series thinned(const Series& series) {
  if (series.size() <= 2 * kColumns) return series;
  Series out;
  const std::size_t part = (series.size() + kColumns - 1) / kColumns;
  for (std::size_t begin = 0; begin < series.size(); begin += part) {
    const std::size_t end = std::min(begin + part, series.size());
    std::size_t least = begin, most = begin;
    bool gap = false;
    for (std::size_t i = begin; i < end; ++i) {
      gap = gap || !std::isfinite(series[i].second);
      if (!(series[least].second <= series[i].second)) least = i;
      if (!(series[most].second >= series[i].second)) most = i;
    }
    out.push_back(series[std::min(least, most)]);
    if (gap) out.emplace_back(series[begin].first, std::nan(""));
    if (least != most) out.push_back(series[std::max(least, most)]);
  }
  return out;
}

std::string axes(const Frame& frame) {
  std::string out;
  for (const double tick : ticks(frame.y)) {
    const std::string y = at(frame.top(tick));
    out += "<line class=\"grid\" x1=\"" + at(kLeft) + "\" x2=\"" + at(kWidth - kRight) + "\" y1=\"" + y + "\" y2=\"" +
           y + "\"/><text x=\"" + at(kLeft - 6) + "\" y=\"" + y +
           "\" text-anchor=\"end\" dominant-baseline=\"middle\">" + mark_text(tick) + "</text>";
  }
  for (const double tick : ticks(frame.x)) {
    out += "<text x=\"" + at(frame.left(tick)) + "\" y=\"" + at(kHeight - kBottom + 16) + "\" text-anchor=\"middle\">" +
           mark_text(tick) + "</text>";
  }
  return out + "<text class=\"unit\" x=\"" + at(kWidth - kRight) + "\" y=\"" + at(kHeight - 4) +
         "\" text-anchor=\"end\">samples</text>";
}

/// A line with a gap wherever a value is no number; those are marked at the top.
std::string line_svg(const Frame& frame, const Series& series, std::size_t color) {
  const std::string css = "c" + std::to_string(color % 6);
  std::string path, marks;
  bool pen_down = false;
  for (const auto& [x, value] : thinned(series)) {
    if (!std::isfinite(value)) {
      pen_down = false;
      marks += "<circle class=\"bad\" cx=\"" + at(frame.left(static_cast<double>(x))) + "\" cy=\"" + at(kTop) +
               "\" r=\"3\"><title>no finite number</title></circle>";
      continue;
    }
    path += (pen_down ? "L" : "M") + frame.point(static_cast<double>(x), value);
    pen_down = true;
  }
  std::string out = "<path class=\"line " + css + "\" d=\"" + path + "\"/>";
  if (series.size() == 1 && !path.empty()) {
    out += "<circle class=\"dot " + css + "\" cx=\"" + at(frame.left(static_cast<double>(series[0].first))) +
           "\" cy=\"" + at(frame.top(series[0].second)) + "\" r=\"3\"/>";
  }
  return out + marks;
}

std::string area_svg(const Frame& frame, const Series& below, const Series& above, std::size_t color) {
  std::string path;
  for (const auto& [x, value] : above) {
    path += (path.empty() ? "M" : "L") + frame.point(static_cast<double>(x), value);
  }
  for (auto point = below.rbegin(); point != below.rend(); ++point) {
    path += "L" + frame.point(static_cast<double>(point->first), point->second);
  }
  return "<path class=\"area c" + std::to_string(color % 6) + "\" d=\"" + path + "Z\"/>";
}

/// Means over parts of the width, so that areas can stand one upon the other.
Series averaged(const Series& series) {
  const std::size_t part = (series.size() + kColumns - 1) / kColumns;
  Series out;
  for (std::size_t begin = 0; begin < series.size(); begin += part) {
    const std::size_t end = std::min(begin + part, series.size());
    double sum = 0, count = 0;
    for (std::size_t i = begin; i < end; ++i) {
      if (!std::isfinite(series[i].second)) continue;
      sum += series[i].second;
      ++count;
    }
    out.emplace_back(series[begin].first, count > 0 ? sum / count : 0);
  }
  return out;
}

}  // namespace

std::string plot_svg(const std::vector<std::pair<std::string, const Series*>>& lines, bool stacked) {
  Frame frame;
  std::vector<Series> areas;
  for (const auto& [name, series] : lines) {
    for (const auto& [x, value] : *series) {
      frame.x.add(static_cast<double>(x));
      if (!stacked) frame.y.add(value);
    }
    if (!stacked) continue;
    Series area = averaged(*series);
    for (std::size_t i = 0; i < area.size() && !areas.empty() && i < areas.back().size(); ++i) {
      area[i].second += areas.back()[i].second;
    }
    for (const auto& point : area) frame.y.add(point.second);
    areas.push_back(std::move(area));
  }
  if (stacked) frame.y.add(0);
  frame.x.widen();
  frame.y.widen();
  std::string out = "<svg viewBox=\"0 0 " + at(kWidth) + " " + at(kHeight) + "\" role=\"img\">" + axes(frame);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (!stacked) {
      out += line_svg(frame, *lines[i].second, i);
      continue;
    }
    Series floor = i == 0 ? areas[0] : areas[i - 1];
    if (i == 0) {
      for (auto& point : floor) point.second = 0;
    }
    out += area_svg(frame, floor, areas[i], i);
  }
  return out + "</svg>";
}

}  // namespace capstan::cli
