#include "core/elastic/world.hpp"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <set>
#include <stdexcept>

namespace capstan {
namespace {

Json list_of(const std::vector<std::int64_t>& numbers) {
  Json list = Json::array();
  for (const std::int64_t number : numbers) list.push_back(number);
  return list;
}

std::vector<std::int64_t> numbers_of(const Json& list) {
  std::vector<std::int64_t> numbers;
  for (const Json& number : list.as_array()) numbers.push_back(number.as_integer());
  return numbers;
}

/// Whoever reads a world finds for each rank a member, its process and its host. Throws std::out_of_range.
void check(const World& world) {
  constexpr std::int64_t kMostProcesses = 1 << 20;
  const std::size_t members = world.members.size();
  const auto check_length = [&](const char* list, std::size_t length) {
    if (length == members) return;
    throw std::out_of_range("a world of " + std::to_string(members) + " members has '" + list + "' of " +
                            std::to_string(length));
  };
  check_length("hosts", world.hosts.size());
  check_length("processes", world.processes.size());
  const std::set<std::int64_t> different(world.members.begin(), world.members.end());
  if (different.size() != members) throw std::out_of_range("a world has one member twice");
  const auto are_numbers = [](const std::vector<std::int64_t>& list, std::int64_t least) {
    return std::all_of(list.begin(), list.end(), [&](std::int64_t one) { return one >= least; });
  };
  const bool counts = world.generation >= 0 && world.losses >= 0 && world.next >= 0 && are_numbers(world.members, 0);
  if (!counts) throw std::out_of_range("a world has numbers below 0");
  constexpr std::int64_t kMostGenerations = 1'000'000'000, kGreatestTerm = std::int64_t{1} << 50;
  const auto is_digit = [](char one) { return (one >= '0' && one <= '9') || (one >= 'a' && one <= 'f'); };
  // Folders have their names of these.
  const bool names = world.generation <= kMostGenerations && world.term >= 0 && world.term <= kGreatestTerm &&
                     world.run.size() <= 64 && std::all_of(world.run.begin(), world.run.end(), is_digit);
  if (!names) throw std::out_of_range("its run, term and generation do not name one");
  const bool ranges = world.size >= 0 && world.size <= kMostProcesses && world.saver >= -1 && world.end_code >= 0 &&
                      world.end_code < 256 && are_numbers(world.processes, 0) && are_numbers(world.waiting, 0) &&
                      are_numbers(world.hosts, -1) && std::isfinite(world.since) && std::isfinite(world.waited);
  if (!ranges) throw std::out_of_range("its numbers do not go together");
}

}  // namespace

bool World::spans_hosts() const {
  return std::any_of(hosts.begin(), hosts.end(), [&](std::int64_t host) { return host != hosts.front(); });
}

Json World::json() const {
  Json json = Json::object();
  json["generation"] = generation;
  json["size"] = size;
  json["members"] = list_of(members);
  json["processes"] = list_of(processes);
  json["waiting"] = list_of(waiting);
  json["hosts"] = list_of(hosts);
  json["address"] = address;
  json["change"] = change;
  json["since"] = since;
  json["waited"] = waited;
  json["losses"] = losses;
  json["kept"] = kept;
  json["elsewhere"] = elsewhere;
  json["wish"] = wish;
  json["end"] = end;
  json["end_code"] = std::int64_t{end_code};
  json["saver"] = saver;
  json["next"] = next;
  json["term"] = term;
  json["run"] = run;
  json["votes"] = votes;
  return json;
}

World World::of(const Json& json) {
  World world;
  world.generation = json.at("generation").as_integer();
  world.size = json.at("size").as_integer();
  world.members = numbers_of(json.at("members"));
  world.processes = numbers_of(json.at("processes"));
  world.waiting = numbers_of(json.at("waiting"));
  world.hosts = numbers_of(json.at("hosts"));
  world.address = json.at("address").as_string();
  world.change = json.at("change").as_string();
  world.since = json.at("since").as_number();
  world.waited = json.at("waited").as_number();
  world.losses = json.at("losses").as_integer();
  world.kept = json.at("kept").as_integer();
  world.elsewhere = json.at("elsewhere").as_bool();
  world.wish = json.at("wish").as_string();
  world.end = json.at("end").as_string();
  world.end_code = static_cast<int>(json.at("end_code").as_integer());
  world.saver = json.at("saver").as_integer();
  world.next = json.at("next").as_integer();
  world.term = json.at("term").as_integer();
  world.run = json.at("run").as_string();
  world.votes = json.at("votes").as_string();
  check(world);
  return world;
}

double steady_seconds() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace capstan
