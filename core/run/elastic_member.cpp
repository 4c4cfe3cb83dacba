#include "core/run/elastic_member.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "core/errors.hpp"
#include "core/run/elastic_made_of.hpp"

namespace capstan {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// How often a process that waits looks whether its launcher lives.
constexpr milliseconds kLookAgain{50};
/// How long processes wait for each other to appear: the first ones load programs meanwhile.
constexpr milliseconds kToMeet = std::chrono::minutes(2), kToMeetAgain = std::chrono::seconds(20);
/// How long they may take to connect after that, however busy the machine. Meanwhile none of them asks whether another
/// generation has begun.
constexpr milliseconds kToConnect = std::chrono::seconds(5);
/// A signal from a terminal reaches the launcher as well, which then ends the run.
constexpr milliseconds kToEnd = std::chrono::seconds(1);

bool contains(const std::vector<std::int64_t>& numbers, std::int64_t number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

}  // namespace

ElasticMember::ElasticMember(WorldFolder folder, std::int64_t number) : folder_(std::move(folder)), number_(number) {
  folder_.join();
}

std::optional<ElasticMember> ElasticMember::from_environment() {
  const char* folder = std::getenv("CAPSTAN_ELASTIC_FOLDER");
  const char* number = std::getenv("CAPSTAN_ELASTIC_MEMBER");
  if (folder == nullptr || number == nullptr) return std::nullopt;
  char* end = nullptr;
  const long long value = std::strtoll(number, &end, 10);
  if (end == number || *end != '\0' || value < 0) {
    throw RuntimeFault(std::string("CAPSTAN_ELASTIC_MEMBER is '") + number +
                       "', which is not the number of a process. 'capstan launch --elastic' sets it.");
  }
  return ElasticMember(WorldFolder(folder), value);
}

const World& ElasticMember::latest() {
  const std::uint32_t now = folder_.revision();
  if (now != revision_) {
    latest_ = folder_.read();
    revision_ = now;
  }
  return latest_;
}

ElasticMember::Task ElasticMember::next(const std::function<void()>& prepare, bool (*asked_to_leave)()) {
  std::optional<Clock::time_point> leaves_at;
  while (true) {
    const World& now = latest();
    if (!now.end.empty()) {
      world_ = now;
      const bool with_others = now.saver >= 0 && now.spans_hosts() && contains(now.members, number_);
      return now.saver == number_ || with_others ? Task::kSave : Task::kEnd;
    }
    if (now.generation > world_.generation && contains(now.members, number_)) {
      world_ = now;
      prepared_ = true;
      return Task::kTrain;
    }
    if (now.generation > 0 && !std::exchange(prepared_, true)) prepare();
    if (!std::exchange(told_ready_, true)) folder_.tell_ready(number_);
    if (is_orphan()) return without_launcher();
    if (asked_to_leave()) {
      if (!leaves_at) leaves_at = Clock::now() + kToEnd;
      if (Clock::now() > *leaves_at) {
        world_.end_code = static_cast<int>(ExitCode::kInterrupted);
        return Task::kEnd;
      }
    }
    folder_.await_other_than(revision_, kLookAgain);
  }
}

/// Nobody appoints the process that saves: the first to come here does. Where there are other hosts, the run goes on
/// there.
ElasticMember::Task ElasticMember::without_launcher() {
  const bool trained = world_.generation > 0 && !world_.spans_hosts();
  world_.end = "the launcher is gone";
  world_.end_code = static_cast<int>(ExitCode::kInterrupted);
  return trained && folder_.offer("saver", std::to_string(number_)) ? Task::kSave : Task::kEnd;
}

Rendezvous ElasticMember::rendezvous() {
  Rendezvous out;
  const auto own = static_cast<std::size_t>(std::find(world_.members.begin(), world_.members.end(), number_) -
                                            world_.members.begin());
  out.rank = static_cast<int>(own);
  out.size = static_cast<int>(world_.members.size());
  out.origin = "capstan launch --elastic";
  out.local_size = 0;
  for (std::size_t rank = 0; rank < world_.hosts.size(); ++rank) {
    out.hosts.push_back(static_cast<int>(world_.hosts[rank]));
    if (world_.hosts[rank] != world_.hosts.at(own)) continue;
    if (rank < own) ++out.local_rank;
    ++out.local_size;
  }
  if (out.size == 1) return out;
  out.address = world_.address;
  out.port_file = folder_.port_file(world_.generation).string();
  out.passing = true;
  out.given_up = [this] { return is_over() || (world_.spans_hosts() && is_orphan()); };
  return out;
}

Communicator::Options ElasticMember::limits(Communicator::Options given) const {
  given.arrival = std::min(given.arrival, world_.generation == 1 ? kToMeet : kToMeetAgain);
  given.connection = std::min(given.arrival, kToConnect);
  given.lingers = false;
  // A host that is cut off leaves connections behind on which nothing ever comes.
  given.given_up = [folder = folder_, generation = world_.generation, spans_hosts = world_.spans_hosts(),
                    seen = revision_, over = false]() mutable {
    try {
      if (const std::uint32_t now = folder.revision(); now != std::exchange(seen, now)) {
        over = folder.read().generation > generation;
      }
      // The other hosts go on in a generation that nobody tells this process of.
      over = over || (spans_hosts && !folder.launcher_lives());
    } catch (const RuntimeFault&) {
      over = true;  // this thread reads the folder next, and says why
    }
    return over;
  };
  return given;
}

bool ElasticMember::is_to_pause() {
  const World& now = latest();
  return now.generation == world_.generation && (!now.wish.empty() || !now.end.empty());
}

bool ElasticMember::is_over() { return latest().generation > world_.generation; }

bool ElasticMember::was_ended_by_others(milliseconds patience) {
  const auto until = Clock::now() + patience;
  while (!is_over() && latest().end.empty()) {
    if (is_orphan()) return true;
    if (Clock::now() >= until) return false;
    folder_.await_other_than(revision_, kLookAgain);
  }
  return true;
}

ElasticMember::Pause ElasticMember::pause(bool leaves) {
  folder_.tell_paused(world_.generation, number_, leaves);
  while (true) {
    if (!latest().end.empty()) return Pause::kEnd;
    if (is_over()) return Pause::kGoOn;
    if (is_orphan()) return world_.spans_hosts() ? Pause::kGoOn : Pause::kEnd;
    folder_.await_other_than(revision_, kLookAgain);
  }
}

void ElasticMember::check_same(const Json& made_of) const {
  if (folder_.offer("made-of", made_of.dump())) return;
  const std::string changes = changes_since(Json::parse(folder_.read("made-of")), made_of);
  if (changes.empty()) return;
  throw ConfigError(changes +
                    " changed since the launch began: this process does not join. Undo the change, or launch anew.");
}

bool ElasticMember::says_first(const std::string& why) const {
  const std::string name = "failure-" + std::to_string(world_.generation);
  return folder_.offer(name, why) || folder_.read(name) != why;
}

bool ElasticMember::is_orphan() const { return !folder_.launcher_lives(); }

}  // namespace capstan
