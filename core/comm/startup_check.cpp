#include "core/comm/startup_check.hpp"

#include <algorithm>

#include "core/errors.hpp"
#include "core/xxh3.hpp"

namespace capstan {
namespace {

Json facts_json(const RunIdentity& facts) {
  Json json = Json::object();
  json["libtorch"] = facts.libtorch;
  json["model"] = facts.model;
  Json parameters = Json::array();
  for (const std::string& line : facts.parameters) parameters.push_back(line);
  json["parameters"] = parameters;
  json["config"] = facts.config;
  return json;
}

RunIdentity facts_of(const Json& json) {
  RunIdentity facts;
  facts.libtorch = json.at("libtorch").as_string();
  facts.model = json.at("model").as_string();
  for (const Json& line : json.at("parameters").as_array()) facts.parameters.push_back(line.as_string());
  facts.config = json.at("config");
  return facts;
}

/// Two values found in the same place.
struct Pair {
  std::string what, first, second;
};

std::string shown(const Json* value) { return value ? value->dump() : "not there"; }

/// The first place where two values differ; `what` is empty when none does.
Pair first_difference(const Json& first, const Json& second, const std::string& path) {
  if (first == second) return {};
  if (!first.is_object() || !second.is_object()) return {path, first.dump(), second.dump()};
  for (const auto* side : {&first, &second}) {
    for (const auto& [key, value] : side->as_object()) {
      const Json *a = first.find(key), *b = second.find(key);
      const std::string below = path.empty() ? key : path + "." + key;
      if (!a || !b) return {below, shown(a), shown(b)};
      if (Pair found = first_difference(*a, *b, below); !found.what.empty()) return found;
    }
  }
  return {};
}

Pair first_difference(const RunIdentity& first, const RunIdentity& second) {
  if (first.libtorch != second.libtorch) return {"LibTorch", first.libtorch, second.libtorch};
  if (first.model != second.model) return {"the model", first.model, second.model};
  const std::size_t count = std::max(first.parameters.size(), second.parameters.size());
  for (std::size_t i = 0; i < count; ++i) {
    const auto line = [&](const RunIdentity& facts) {
      return i < facts.parameters.size() ? facts.parameters[i] : std::string("none");
    };
    if (line(first) != line(second)) return {"parameter " + std::to_string(i), line(first), line(second)};
  }
  Pair found = first_difference(first.config, second.config, "");
  if (!found.what.empty()) found.what = "configuration key " + found.what;
  return found;
}

}  // namespace

std::string difference(const RunIdentity& facts, int rank, const RunIdentity& others, int other_rank) {
  const Pair found = first_difference(facts, others);
  if (found.what.empty()) return "";
  return "the processes are not about to do the same: " + found.what + " is " + found.first + " on rank " +
         std::to_string(rank) + " and " + found.second + " on rank " + std::to_string(other_rank) +
         ". Start all of them with the same program, configuration and arguments.";
}

void check_same_run(Communicator& communicator, const RunIdentity& facts) {
  if (communicator.size() == 1) return;
  const std::string text = facts_json(facts).dump();
  const auto digests = communicator.all_gather_text("start: digest of the run", hex(xxh3(text.data(), text.size())));
  const auto other = std::find_if(digests.begin(), digests.end(), [&](const auto& one) { return one != digests[0]; });
  if (other == digests.end()) return;
  const auto other_rank = other - digests.begin();
  const auto all = communicator.all_gather_text("start: facts of the run", text);
  const std::string sentence =
      difference(facts_of(Json::parse(all[0])), 0, facts_of(Json::parse(all[static_cast<std::size_t>(other_rank)])),
                 static_cast<int>(other_rank));
  throw RuntimeFault(sentence.empty() ? "the processes' digests differ, though nothing that they are made of does."
                                      : sentence);
}

}  // namespace capstan
