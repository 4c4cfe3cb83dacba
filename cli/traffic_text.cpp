#include "cli/traffic_text.hpp"

#include <cstdint>
#include <vector>

#include "core/text/numbers.hpp"
#include "core/text/table.hpp"

namespace capstan::cli {
namespace {

CommsLog::Traffic sent(const CommsLog::TrafficByName& traffic, const std::string& name) {
  const auto found = traffic.find(name);
  return found == traffic.end() ? CommsLog::Traffic{} : found->second;
}

}  // namespace

std::string traffic_text(const CommsLog::TrafficByName& all, const CommsLog::TrafficByName& before,
                         const CommsLog::TrafficByName& after) {
  std::vector<std::vector<std::string>> rows = {
      {"comms, sent by rank 0", "calls", "bytes", "last step: calls", "bytes"}};
  CommsLog::Traffic sum, last_sum;
  const auto row = [&](const std::string& name, const CommsLog::Traffic& run, const CommsLog::Traffic& last) {
    const auto text = [](std::uint64_t number) { return grouped(static_cast<std::int64_t>(number)); };
    rows.push_back({name, text(run.calls), text(run.bytes), text(last.calls), text(last.bytes)});
  };
  for (const auto& [name, run] : all) {
    const CommsLog::Traffic then = sent(before, name), now = sent(after, name);
    const CommsLog::Traffic last = {now.calls - then.calls, now.bytes - then.bytes};
    row(name, run, last);
    sum = {sum.calls + run.calls, sum.bytes + run.bytes};
    last_sum = {last_sum.calls + last.calls, last_sum.bytes + last.bytes};
  }
  row("together", sum, last_sum);
  std::string text = table_text(rows);
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace capstan::cli
