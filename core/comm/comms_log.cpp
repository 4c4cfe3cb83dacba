#include "core/comm/comms_log.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <utility>

namespace capstan {
namespace {

std::string fixed(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

/// Left-justified to 20; blanks at the end of the line are left out.
std::string columns(const std::vector<std::string>& cells) {
  constexpr std::size_t kWidth = 20;
  std::string line;
  for (const std::string& cell : cells) {
    line += cell;
    if (cell.size() < kWidth) line.append(kWidth - cell.size(), ' ');
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

/// Rows with the op's name alone on a line before its sizes.
template <class Cells>
std::string table(const std::vector<std::string>& head, const std::vector<CommsRow>& rows, Cells&& cells) {
  std::string text = columns(head), op;
  for (const CommsRow& row : rows) {
    if (row.op != op) text += (op = row.op) + "\n";
    std::vector<std::string> line{"", comms_size_text(row.bytes), std::to_string(row.count)};
    for (const double value : cells(row)) line.push_back(fixed(value));
    text += columns(line);
  }
  return text;
}

std::string now_text() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

double sum_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

}  // namespace

Bandwidth bandwidth_of(std::string_view op, double bytes, double milliseconds, int ranks) {
  if (!(milliseconds > 0)) return {};
  const double n = ranks, others = (n - 1) / n;
  const double rate = bytes / milliseconds * 8 / 1e6;
  const std::string_view name = collective_name(op);
  if (name == "all_to_all_single") return {rate, rate * others};
  if (name == "all_gather" || name == "reduce_scatter") return {n * rate, n * rate * others};
  if (name == "all_reduce") return {2 * rate, rate * 2 * others};
  return {rate, rate};
}

double trimmed_mean(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  // nearbyint rounds half to even.
  const auto cut = static_cast<std::ptrdiff_t>(std::nearbyint(static_cast<double>(values.size()) * 0.1));
  const std::vector<double> kept(values.begin() + cut, values.end() - cut);
  return sum_of(kept) / static_cast<double>(kept.size());
}

std::string comms_size_text(std::uint64_t bytes) {
  if (bytes == 0) return "0B";
  static constexpr const char* kUnits[] = {"B", "KB", "MB", "GB", "TB", "PB", "EB"};
  std::size_t unit = 0;
  double value = static_cast<double>(bytes);
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  std::string text = fixed(value);
  if (text.ends_with('0')) text.pop_back();
  return text + " " + kUnits[unit];
}

std::string CommsSummary::text() const {
  std::string out = table({"Comm. Op", "Message Size", "Count", "Total Latency(ms)", "Avg Latency(ms)",
                           "tput_avg (Gbps)", "busbw_avg (Gbps)"},
                          rows, [](const CommsRow& row) {
                            return std::vector{row.total_ms, row.average_ms, row.algorithm_gbps, row.bus_gbps};
                          });
  if (stragglers) {
    out +=
        "_______________________________\n"
        "Breakdown with straggler effect\n"
        "-------------------------------\n";
    out += table({"Comm. Op", "Message Size", "Count", "Total comm lat(ms)", "Total straggler(ms)", "Avg comm lat(ms)",
                  "Avg straggler(ms)"},
                 rows, [](const CommsRow& row) {
                   return std::vector{row.comm_ms, row.straggler_ms, row.average_comm_ms, row.average_straggler_ms};
                 });
  }
  out.pop_back();
  return out;
}

Json CommsSummary::json() const {
  Json all = Json::object(), compared;
  for (const CommsRow& row : rows) {
    const std::string size = std::to_string(row.bytes), size_text = comms_size_text(row.bytes);
    Json one = Json::object();
    one["count"] = static_cast<std::int64_t>(row.count);
    one["total_latency_ms"] = row.total_ms;
    one["avg_latency_ms"] = row.average_ms;
    one["tput_avg_gbps"] = row.algorithm_gbps;
    one["busbw_avg_gbps"] = row.bus_gbps;
    one["msg_size_bytes"] = row.bytes;
    one["msg_size_str"] = size_text;
    all[row.op][size] = one;
    if (!stragglers) continue;
    Json other = Json::object();
    other["count"] = static_cast<std::int64_t>(row.count);
    other["total_comm_lat_ms"] = row.comm_ms;
    other["total_straggler_ms"] = row.straggler_ms;
    other["avg_comm_lat_ms"] = row.average_comm_ms;
    other["avg_straggler_ms"] = row.average_straggler_ms;
    other["msg_size_bytes"] = row.bytes;
    other["msg_size_str"] = size_text;
    compared[row.op][size] = other;
  }
  Json out = Json::object();
  out["summary"] = all;
  out["straggler_analysis"] = compared;
  out["metadata"]["world_size"] = world_size;
  out["metadata"]["rank"] = rank;
  out["metadata"]["timestamp"] = now_text();
  return out;
}

void CommsLog::configure(const CommsLoggerConfig& config, Print print) {
  const std::lock_guard lock(mutex_);
  record_all_ = config.enabled && config.prof_all;
  ops_.clear();
  if (config.enabled) {
    for (const std::string& op : config.prof_ops) add_op(op, true);
  }
  verbose_ = config.verbose;
  debug_ = config.debug;
  print_ = std::move(print);
}

void CommsLog::add_op(const std::string& op, bool on) {
  const std::string name(collective_name(op));
  std::erase(ops_, name);
  if (on) ops_.push_back(name);
}

void CommsLog::record_all(bool on) {
  const std::lock_guard lock(mutex_);
  record_all_ = on;
}

void CommsLog::record_ops(const std::vector<std::string>& ops, bool on) {
  const std::lock_guard lock(mutex_);
  for (const std::string& op : ops) add_op(op, on);
}

void CommsLog::reset() {
  const std::lock_guard lock(mutex_);
  keys_.clear();
  calls_.clear();
}

CommsLog::TrafficByName CommsLog::traffic() const {
  const std::lock_guard lock(mutex_);
  return traffic_;
}

std::size_t CommsLog::recorded_calls() const {
  const std::lock_guard lock(mutex_);
  return calls_.size();
}

CommsLog::Traffic CommsLog::total() const {
  const std::lock_guard lock(mutex_);
  Traffic sum;
  for (const auto& [name, one] : traffic_) {
    sum.calls += one.calls;
    sum.bytes += one.bytes;
    sum.milliseconds += one.milliseconds;
  }
  return sum;
}

std::vector<double> CommsLog::times() const {
  const std::lock_guard lock(mutex_);
  std::vector<double> times;
  for (const Recorded& call : calls_) times.push_back(call.milliseconds);
  return times;
}

bool CommsLog::records(std::string_view op) const {
  return record_all_ || std::find(ops_.begin(), ops_.end(), op) != ops_.end();
}

std::uint32_t CommsLog::key_of(const Call& call) {
  std::string name(call.op);
  if (debug_) name += " | [Caller Func: " + std::string(call.caller) + "]";
  const auto found = std::find_if(keys_.begin(), keys_.end(), [&](const Key& key) {
    return key.bytes == call.bytes && key.ranks == call.ranks && key.name == name;
  });
  const auto index = static_cast<std::uint32_t>(found - keys_.begin());
  if (found == keys_.end()) keys_.push_back({std::string(call.op), name, call.bytes, call.ranks});
  return index;
}

void CommsLog::add(const Call& call) {
  const std::lock_guard lock(mutex_);
  auto found = traffic_.find(call.op);
  if (found == traffic_.end()) found = traffic_.emplace(std::string(call.op), Traffic{}).first;
  ++found->second.calls;
  found->second.bytes += call.sent;
  found->second.milliseconds += call.milliseconds;
  if (!records(call.op)) return;
  const std::uint32_t key = key_of(call);
  calls_.push_back({key, static_cast<float>(call.milliseconds)});
  if (!verbose_ || !print_) return;
  const Bandwidth rate = bandwidth_of(call.op, static_cast<double>(call.bytes), call.milliseconds, call.ranks);
  print_("comm op: " + keys_[key].name + " | time (ms): " + fixed(call.milliseconds) +
         " | msg size: " + comms_size_text(call.bytes) + " | algbw (Gbps): " + fixed(rate.algorithm) +
         " | busbw (Gbps): " + fixed(rate.bus));
}

CommsSummary CommsLog::summary(int rank, int world_size, const std::vector<double>& fastest) const {
  const std::lock_guard lock(mutex_);
  CommsSummary out;
  out.stragglers = !fastest.empty();
  out.rank = rank;
  out.world_size = world_size;
  std::vector<std::vector<std::size_t>> calls_of(keys_.size());
  for (std::size_t i = 0; i < calls_.size(); ++i) calls_of[calls_[i].key].push_back(i);

  std::map<std::string_view, std::size_t> first_seen;
  std::vector<std::size_t> order(keys_.size());
  for (std::size_t k = 0; k < keys_.size(); ++k) {
    order[k] = k;
    first_seen.emplace(keys_[k].name, k);
  }
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(first_seen[keys_[a].name], keys_[a].bytes) < std::pair(first_seen[keys_[b].name], keys_[b].bytes);
  });
  for (const std::size_t k : order) {
    const Key& key = keys_[k];
    std::vector<double> own, algorithm, bus, least, beyond;
    for (const std::size_t i : calls_of[k]) {
      const double milliseconds = calls_[i].milliseconds;
      const Bandwidth rate = bandwidth_of(key.op, static_cast<double>(key.bytes), milliseconds, key.ranks);
      own.push_back(milliseconds);
      algorithm.push_back(rate.algorithm);
      bus.push_back(rate.bus);
      if (i >= fastest.size()) continue;
      least.push_back(fastest[i]);
      beyond.push_back(milliseconds - fastest[i]);
    }
    out.rows.push_back({.op = key.name,
                        .bytes = key.bytes,
                        .count = own.size(),
                        .total_ms = sum_of(own),
                        .average_ms = trimmed_mean(own),
                        .algorithm_gbps = trimmed_mean(algorithm),
                        .bus_gbps = trimmed_mean(bus),
                        .comm_ms = sum_of(least),
                        .average_comm_ms = trimmed_mean(least),
                        .straggler_ms = sum_of(beyond),
                        .average_straggler_ms = trimmed_mean(beyond)});
  }
  return out;
}

}  // namespace capstan
