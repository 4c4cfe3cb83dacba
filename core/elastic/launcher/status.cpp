#include "core/elastic/launcher/status.hpp"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "core/elastic/launcher/link.hpp"
#include "core/elastic/launcher/secret.hpp"
#include "core/errors.hpp"
#include "core/text/numbers.hpp"
#include "core/text/table.hpp"

namespace capstan {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kReaching{2000}, kReplying{5000}, kAgain{100};

std::string head_of(const std::string& name, const World& world, const WorldFolder::Step& step, double now) {
  std::string text = "launch " + name + ": ";
  if (!world.end.empty()) return text + "ends, because " + world.end;
  if (world.generation == 0) return text + "starts " + counted(world.size, "process", "processes");
  text += "generation " + grouped(world.generation) + ", ";
  if (world.members.empty()) return text + "waits for more processes (" + world.change + ")";
  text += counted(static_cast<std::int64_t>(world.members.size()), "process trains", "processes train");
  if (!world.waiting.empty()) text += ", " + counted(static_cast<std::int64_t>(world.waiting.size()), "waits", "wait");
  if (step.step > 0) {
    text += "; step " + grouped(step.step) + " " + fixed(now - step.at, 1) + " s ago";
  }
  return text + "; " + counted(world.losses, "process lost", "processes lost");
}

/// What the launcher there replies; nothing where it is none. Throws RuntimeFault where nobody answers, or somebody
/// with another secret.
std::optional<Json> reply_of(const LauncherAddress& address, const RendezvousSecret& secret, Clock::time_point until) {
  Json question = Json::object();
  question["status"] = true;
  bool is_busy = false, has_other_secret = false;
  do {
    std::string why;
    const auto link = ElasticLink::call(address, secret.to_call(address.port), kReaching, why);
    if (!link) throw RuntimeFault("launch: nobody answers at " + address.text() + " (" + why + ").");
    link->send(question);
    while (!link->is_closed() && Clock::now() < until) {
      pollfd one{link->descriptor(), POLLIN, 0};
      poll(&one, 1, 50);
      if (auto reply = link->receive()) return reply;
    }
    // Many call it, or a launcher on this host has not shown its secret yet.
    has_other_secret = link->has_other_secret();
    is_busy = link->is_closed() && (has_other_secret ? !secret.is_given() : link->was_hung_up_on());
    if (is_busy) std::this_thread::sleep_for(kAgain);
  } while (is_busy && Clock::now() < until);
  if (!has_other_secret) return std::nullopt;
  throw RuntimeFault("launch: the launcher at " + address.text() +
                     " has another secret. Give that of the launch (--rdzv-secret-file, or CAPSTAN_RDZV_SECRET).");
}

std::string status_of(const WorldFolder& folder) {
  const World world = folder.read();
  std::vector<ShownProcess> processes;
  for (std::size_t rank = 0; rank < world.processes.size(); ++rank) {
    const bool elsewhere = world.spans_hosts();
    processes.push_back({static_cast<std::int64_t>(rank), world.processes[rank],
                         elsewhere ? "host " + std::to_string(world.hosts[rank]) : ""});
  }
  for (const std::int64_t process : world.waiting) processes.push_back({-1, process, ""});
  return elastic_status(std::to_string(WorldFolder::launcher_of(folder.path())), world, folder.last_step(),
                        folder.seconds(), std::move(processes)) +
         (folder.launcher_lives() ? "" : "  its launcher is gone: the processes save and end\n");
}

}  // namespace

std::string elastic_status(const std::string& name, const World& world, const WorldFolder::Step& step, double now,
                           std::vector<ShownProcess> processes) {
  std::stable_sort(processes.begin(), processes.end(), [](const ShownProcess& a, const ShownProcess& b) {
    return std::pair(a.rank < 0, a.rank) < std::pair(b.rank < 0, b.rank);
  });
  std::vector<std::vector<std::string>> rows;
  for (const ShownProcess& one : processes) {
    rows.push_back(
        {one.rank < 0 ? "  waits" : "  rank " + std::to_string(one.rank), "process " + std::to_string(one.process)});
    if (!one.host.empty()) rows.back().push_back(one.host);
  }
  std::string text = head_of(name, world, step, now) + "\n" + table_text(rows);
  if (world.generation > 1) text += "  last change: " + world.change + "\n";
  return text;
}

std::string elastic_status() {
  WorldFolder::Listed listed = WorldFolder::list();
  std::string text;
  for (const auto& path : listed.living) {
    try {
      text += status_of(WorldFolder(path));
    } catch (const RuntimeFault& fault) {
      if (std::filesystem::exists(path)) listed.refused.emplace_back(fault.what());
    }
  }
  if (text.empty()) text = "There is no elastic launch of this user on this host.\n";
  for (const auto& path : listed.left) {
    text += "left by a launch that was lost with all its processes: " + path.string() +
            "\n  the same command goes on from there; another launch removes it ten minutes after its last step\n";
  }
  for (const std::string& one : listed.refused) text += "not shown: " + one + "\n";
  return text;
}

std::string elastic_status_at(const std::vector<LauncherAddress>& rdzv, const RendezvousSecret& secret) {
  const auto until = Clock::now() + kReplying;
  LauncherAddress address = rdzv.front();
  for (int hops = 0; hops < 3; ++hops) {
    const std::optional<Json> reply = reply_of(address, secret, until);
    if (!reply) break;
    try {
      if (reply->find("text") != nullptr) return reply->at("text").as_string();
      const Json& leader = reply->at("leader");
      address = {leader.at("host").as_string(), static_cast<int>(leader.at("port").as_integer())};
    } catch (const std::exception&) {
      break;  // some other program answers
    }
  }
  throw RuntimeFault("launch: what listens at " + address.text() + " is not an elastic launch.");
}

}  // namespace capstan
