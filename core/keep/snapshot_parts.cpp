#include "core/keep/snapshot_parts.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "core/checkpoint/snapshot.hpp"
#include "core/checkpoint/state_text.hpp"
#include "core/errors.hpp"
#include "core/host_tensor.hpp"
#include "core/xxh3.hpp"

namespace capstan {
namespace {

constexpr const char* kCaller = "load_snapshot";
constexpr std::int64_t kBetweenTensors = 64;  // bytes to which a tensor that travels is aligned

Json facts_json(const SnapshotFacts& facts) {
  Json json = Json::object();
  json["generation"] = facts.generation;
  json["sequence"] = facts.sequence;
  json["step"] = facts.step;
  json["world"] = facts.world;
  json["part"] = facts.rank;
  json["layout"] = facts.layout;  // its bits, as a signed number
  return json;
}

std::string found_text(const SnapshotFolder::Found& found) {
  Json json = Json::object();
  json["segments"] = Json::array();
  for (const SealedSegment& segment : found.segments)
    json["segments"].as_array().push_back(facts_json(segment.facts()));
  json["damaged"] = Json::array();
  for (const std::string& sentence : found.damaged) json["damaged"].as_array().emplace_back(sentence);
  return json.dump();
}

void add_segment(FoundSnapshots& all, std::map<SnapshotId, SnapshotCandidate>& candidates, int rank, const Json& json) {
  const auto number = [&](const char* key) { return json.at(key).as_integer(); };
  const SnapshotId id{number("generation"), number("sequence")};
  const std::int64_t part = number("part"), world = number("world"), step = number("step");
  const auto layout = static_cast<std::uint64_t>(number("layout"));
  if (part < 0 || part >= world) return;
  SnapshotCandidate& candidate = candidates[id];
  if (candidate.holders.empty()) candidate = {id, step, world, layout, {}};
  if (candidate.world != world || candidate.step != step || candidate.layout != layout) {
    all.damaged.insert("snapshot of step " + std::to_string(step) + ": its parts do not belong together.");
    candidate.world = -1;  // never whole
    return;
  }
  candidate.holders[part].insert(rank);
}

/// The parts of one snapshot that some rank has to be sent, and how.
class Sending {
 public:
  using Parts = std::map<std::int64_t, const SealedSegment*>;

  Sending(const SnapshotCandidate& candidate, const Parts& own, Communicator& ranks) : own_(own), ranks_(ranks) {
    for (const auto& [part, holders] : candidate.holders) {
      if (static_cast<int>(holders.size()) == ranks.size()) continue;
      sources_[part] = *std::next(holders.begin(), part % static_cast<std::int64_t>(holders.size()));
    }
  }
  bool is_needed() const { return !sources_.empty(); }

  /// Adds the tensors of parts that this rank lacks. Called by all ranks.
  void receive(CheckpointContents& contents, const std::string& where, const TakesTensor& takes, std::string& defect) {
    tell_indexes();
    attempt(defect, [&] { choose(contents, where, takes); });
    exchange();
    attempt(defect, [&] { take(contents, where); });
  }

 private:
  /// A tensor that travels to this rank.
  struct Wanted {
    int from = 0;
    std::int64_t part = 0;
    std::size_t index = 0;  // in the part
    IndexedTensor place;
    std::uint64_t digest = 0;
    std::int64_t position = 0;  // in what its source sends
  };

  static void attempt(std::string& defect, const std::function<void()>& work) {
    if (!defect.empty()) return;
    try {
      work();
    } catch (const std::exception& error) {
      defect = error.what();
    }
  }
  static std::int64_t room_for(const IndexedTensor& place) {
    const auto bytes = static_cast<std::int64_t>(place.end - place.begin);
    return (bytes + kBetweenTensors - 1) / kBetweenTensors * kBetweenTensors;
  }

  void tell_indexes() {
    Json told = Json::array();
    for (const auto& [part, source] : sources_) {
      if (source != ranks_.rank()) continue;
      const SealedSegment& segment = *own_.at(part);
      Json json = Json::object();
      json["part"] = part;
      json["index"] = std::string(segment.index());
      json["state"] = std::string(segment.state());
      json["bytes"] = segment.data().size();
      json["digests"] = Json::array();
      for (std::uint64_t k = 0; k < segment.digest_count(); ++k) {
        json["digests"].as_array().emplace_back(segment.digest(k));
      }
      told.as_array().push_back(std::move(json));
    }
    for (const std::string& text : ranks_.all_gather_text("load_snapshot, indexes", told.dump(), kCaller)) {
      const Json parts = Json::parse(text);
      for (const Json& json : parts.as_array()) told_.emplace(json.at("part").as_integer(), json);
    }
  }

  /// Of the parts that this rank lacks: takes down what tensors there are, and wants those that it needs.
  void choose(CheckpointContents& contents, const std::string& where, const TakesTensor& takes) {
    std::map<int, std::int64_t> positions;
    for (const auto& [part, json] : told_) {
      if (own_.contains(part)) continue;
      const std::string of_part = where + ", part " + std::to_string(part);
      const auto places = snapshot_places(json.at("index").as_string(),
                                          static_cast<std::uint64_t>(json.at("bytes").as_integer()), of_part);
      if (places.size() != json.at("digests").size()) {
        throw RuntimeFault(of_part + ": its index and its checksums do not belong together.");
      }
      if (part == 0) contents.state = parse_state(json.at("state").as_string(), of_part + ", state");
      for (std::size_t k = 0; k < places.size(); ++k) {
        const IndexedTensor& place = places[k];
        CheckpointTensor tensor{place.parameter, place.state, place.shape, place.offset,
                                values_elsewhere({place.numel}, place.type)};
        if (takes(tensor)) {
          const int from = sources_.at(part);
          const auto digest = static_cast<std::uint64_t>(json.at("digests").as_array()[k].as_integer());
          wanted_.push_back({from, part, k, place, digest, positions[from]});
          positions[from] += room_for(place);
        } else
          contents.tensors.push_back(std::move(tensor));
      }
    }
  }

  void exchange() {
    Json wishes = Json::array();
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(ranks_.size()));
    for (const Wanted& one : wanted_) {
      wishes.as_array().emplace_back(Json::Array{one.from, one.part, static_cast<std::int64_t>(one.index)});
      sizes[static_cast<std::size_t>(one.from)] += room_for(one.place);
    }
    std::vector<at::Tensor> send;
    for (const std::int64_t bytes : sizes) received_.push_back(host_empty({bytes}, at::kByte));
    for (const std::string& text : ranks_.all_gather_text("load_snapshot, wishes", wishes.dump(), kCaller)) {
      send.push_back(wished(Json::parse(text)));
    }
    ranks_.all_to_all("load_snapshot, values", send, received_, kCaller);
  }

  /// What this rank sends to one that wishes.
  at::Tensor wished(const Json& wishes) const {
    std::vector<std::pair<const std::byte*, IndexedTensor>> tensors;
    std::map<std::int64_t, std::vector<IndexedTensor>> places;
    std::int64_t bytes = 0;
    for (const Json& wish : wishes.as_array()) {
      if (wish.as_array()[0].as_integer() != ranks_.rank()) continue;
      const std::int64_t part = wish.as_array()[1].as_integer();
      const SealedSegment& segment = *own_.at(part);
      auto& of_part = places[part];
      if (of_part.empty()) of_part = snapshot_places(segment.index(), segment.data().size(), "snapshot");
      const IndexedTensor& place = of_part.at(static_cast<std::size_t>(wish.as_array()[2].as_integer()));
      tensors.emplace_back(segment.data().data() + place.begin, place);
      bytes += room_for(place);
    }
    at::Tensor out = host_empty({bytes}, at::kByte);
    auto* to = static_cast<std::byte*>(out.mutable_data_ptr());
    for (const auto& [from, place] : tensors) {
      std::memcpy(to, from, place.end - place.begin);
      to += room_for(place);
    }
    return out;
  }

  void take(CheckpointContents& contents, const std::string& where) {
    for (const Wanted& one : wanted_) {
      const auto bytes = static_cast<std::int64_t>(one.place.end - one.place.begin);
      const at::Tensor values = received_[static_cast<std::size_t>(one.from)].narrow(0, one.position, bytes);
      if (xxh3(values.const_data_ptr(), values.nbytes()) != one.digest) {
        throw RuntimeFault(where + ", part " + std::to_string(one.part) + ": " + one.place.state + " of '" +
                           one.place.parameter + "' is damaged: it does not match its checksum.");
      }
      contents.tensors.push_back(
          {one.place.parameter, one.place.state, one.place.shape, one.place.offset, values.view(one.place.type)});
    }
  }

  const Parts& own_;
  Communicator& ranks_;
  std::map<std::int64_t, int> sources_;  // by part: who sends it to those that lack it
  std::map<std::int64_t, Json> told_;    // by part: its index, state and checksums
  std::vector<Wanted> wanted_;
  std::vector<at::Tensor> received_;  // by source
};

}  // namespace

FoundSnapshots found_by_all(const SnapshotFolder::Found& found, Communicator& ranks) {
  FoundSnapshots all;
  std::map<SnapshotId, SnapshotCandidate> candidates;
  int rank = 0;
  for (const std::string& text : ranks.all_gather_text("load_snapshot, segments", found_text(found), kCaller)) {
    const Json json = Json::parse(text);
    for (const Json& sentence : json.at("damaged").as_array()) all.damaged.insert(sentence.as_string());
    for (const Json& segment : json.at("segments").as_array()) add_segment(all, candidates, rank, segment);
    ++rank;
  }
  for (auto candidate = candidates.rbegin(); candidate != candidates.rend(); ++candidate) {
    all.candidates.push_back(std::move(candidate->second));
  }
  return all;
}

CheckpointContents read_parts(const SnapshotCandidate& candidate, const SnapshotFolder::Found& found,
                              const TakesTensor& takes, Communicator& ranks, std::string& defect) {
  CheckpointContents contents;
  Sending::Parts own;
  for (const SealedSegment& segment : found.segments) {
    const SnapshotFacts& facts = segment.facts();
    if (SnapshotId{facts.generation, facts.sequence} == candidate.id) own.emplace(facts.rank, &segment);
  }
  try {
    for (const auto& [part, segment] : own) {
      for (CheckpointTensor& tensor : read_snapshot(*segment, takes)) contents.tensors.push_back(std::move(tensor));
      if (part == 0) {
        contents.state = parse_state(segment->state(), "snapshot '" + segment->path().string() + "', state");
      }
    }
  } catch (const std::exception& error) {
    defect = error.what();
  }
  Sending sending(candidate, own, ranks);
  if (sending.is_needed()) {
    sending.receive(contents, "snapshot of step " + std::to_string(candidate.step), takes, defect);
  }
  return contents;
}

}  // namespace capstan
