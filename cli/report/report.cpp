#include "cli/report/report.hpp"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>

#include "cli/commands.hpp"
#include "cli/program.hpp"
#include "cli/report/report_tuning.hpp"
#include "core/errors.hpp"
#include "core/output_path.hpp"
#include "core/tuning/trial_folder.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;

/// "32,0.5" -> (32, 0.5); nothing for any other line, such as one that a crash cut off.
std::optional<Series::value_type> row(std::string_view line) {
  while (line.ends_with('\r') || line.ends_with('\n')) line.remove_suffix(1);
  Series::value_type out{};
  const char* const end = line.data() + line.size();
  const auto x = std::from_chars(line.data(), end, out.first);
  if (x.ec != std::errc() || x.ptr == end || *x.ptr != ',') return std::nullopt;
  const auto value = std::from_chars(x.ptr + 1, end, out.second);
  if (value.ec != std::errc() || value.ptr != end) return std::nullopt;
  return out;
}

Series read_series(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string line;
  Series series;
  if (!std::getline(in, line) || !line.starts_with("step,")) return series;
  while (std::getline(in, line)) {
    if (const auto point = row(line)) series.push_back(*point);
  }
  return series;
}

std::map<std::string, Series> read_metrics(const fs::path& folder) {
  std::map<std::string, Series> metrics;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".csv" || !entry.is_regular_file()) continue;
    Series series = read_series(entry.path());
    if (!series.empty()) metrics.emplace(entry.path().stem().string(), std::move(series));
  }
  return metrics;
}

void write_page(const fs::path& out, const std::string& page) {
  replace_file(out, page);
  print("wrote " + out.string() + "\n");
}

}  // namespace

int report(const ReportArguments& arguments) {
  const fs::path folder(arguments.run);
  if (!fs::is_directory(folder)) {
    throw RuntimeFault(arguments.run +
                       ": is not a folder. Give the folder of a run's csv_monitor: <output_path>/<job_name>.");
  }
  const fs::path out = arguments.out.empty() ? folder / "report.html" : fs::path(arguments.out);
  const std::string path = fs::absolute(folder).lexically_normal().string();
  const std::string name = path.ends_with('/') ? path.substr(0, path.size() - 1) : path;
  if (const auto tuning = read_json(folder / "tuning.json")) {
    write_page(out, tuning_page(name, *tuning));
    return 0;
  }
  const auto metrics = read_metrics(folder);
  if (metrics.empty()) {
    throw RuntimeFault(arguments.run +
                       ": holds no metrics. Give the folder of a run's csv_monitor, <output_path>/<job_name>; "
                       "\"csv_monitor\": {\"enabled\": true} in a configuration writes them.");
  }
  write_page(out, report_page(name, metrics));
  return 0;
}

}  // namespace capstan::cli
