// Copies what a checkpoint of an engine holds to shared memory, beside the training.

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/checkpoint/carried_files.hpp"
#include "core/checkpoint/snapshot.hpp"
#include "core/checkpoint/state_text.hpp"
#include "core/elastic/snapshot_folder.hpp"
#include "core/errors.hpp"
#include "core/keep/keep.hpp"
#include "core/keep/snapshot_partners.hpp"
#include "core/monitor/monitor_host.hpp"
#include "core/text/numbers.hpp"
#include "core/xxh3.hpp"

namespace capstan {
namespace {

/// What state.json may grow by from one snapshot to the next, so that segments need not grow with it.
constexpr std::uint64_t kRoomForState = 64 << 10;
/// How long a snapshot waits for the monitors' rows of the steps before it.
constexpr std::int64_t kMonitorsMs = 1000;

std::uint64_t with_room(std::uint64_t bytes) { return bytes + bytes / 2 + kRoomForState; }

/// What a rank tells the others before its first snapshot, in bytes of shared memory.
struct RoomNeeded {
  std::uint64_t segment = 0, next = 0;    // that each of its two needs, and that the one written first has
  std::uint64_t in_folder = 0, free = 0;  // that all segments have, and that nobody has
  std::string folder;

  std::string text() const {
    Json json = Json::object();
    json["segment"] = segment;
    json["next"] = next;
    json["in_folder"] = in_folder;
    json["free"] = free;
    json["folder"] = folder;
    return json.dump();
  }
  static RoomNeeded read(const std::string& text) {
    const Json json = Json::parse(text);
    const auto bytes = [&](const char* key) { return static_cast<std::uint64_t>(json.at(key).as_integer()); };
    return {bytes("segment"), bytes("next"), bytes("in_folder"), bytes("free"), json.at("folder").as_string()};
  }
};

/// These ranks share a host's memory. Throws RuntimeFault where it has no room for their snapshots: for the first of
/// each beside what others have left, which goes once that is whole, or for both of each after that. `copies`: bytes of
/// what ranks of other hosts send here.
void check_room(const std::vector<RoomNeeded>& ranks, std::uint64_t copies) {
  std::uint64_t needed = copies, missing_now = 0, free = ranks.front().free, in_folder = 0;
  for (const RoomNeeded& rank : ranks) {
    needed += 2 * rank.segment;
    missing_now += rank.segment - std::min(rank.segment, rank.next);
    free = std::min(free, rank.free);
    in_folder = std::max(in_folder, rank.in_folder);
  }
  if (missing_now <= free && needed <= free + in_folder) return;
  const std::string enough = std::to_string((needed + needed / 4 + 999'999) / 1'000'000) + "M";
  throw RuntimeFault(
      "elasticity: the snapshots of " + std::to_string(ranks.size()) + (ranks.size() == 1 ? " process" : " processes") +
      " on this host, two of each part of the training's state" + (copies > 0 ? ", and copies of other hosts'" : "") +
      ", need " + bytes_text(needed) + " in '" + ranks.front().folder + "', and there " + bytes_text(free) +
      " are free" + (in_folder > 0 ? " beside " + bytes_text(in_folder) + " of snapshots" : "") +
      ". Give shared memory more room (mount -o remount,size=" + enough + " /dev/shm, or --shm-size=" + enough +
      " of a container), or train without --elastic and save checkpoints to disk.");
}

}  // namespace

std::uint64_t Keep::layout_hash() {
  if (known_layout_) return *known_layout_;
  std::string text =
      parts_.model.description() + "\n" + (parts_.optimizer ? parts_.optimizer->manifest().type : "none") + "\n";
  for (const auto* list : {&parts_.model.parameters(), &parts_.model.buffers()}) {
    for (const NamedTensor& named : *list) {
      if (!named.persistent) continue;
      text += named.name + " " + c10::str(named.tensor.sizes()) + (named.trained() ? "\n" : " fixed\n");
    }
  }
  for (const StateSpec& spec : parts_.store.states()) {
    if (!spec.scratch) text += spec.name + " " + c10::toString(state_dtype(spec, parts_.config)) + "\n";
  }
  known_layout_ = xxh3(text.data(), text.size());
  return *known_layout_;
}

CheckpointContents Keep::snapshot_contents() {
  CheckpointContents contents = saved_contents("begin_snapshot");
  // What the next forward may change. Everything else is an update's to change.
  std::set<std::string> parameters, of_optimizer;
  for (const auto& [spec, values] : model_states()) {
    of_optimizer.insert(spec->per_rank ? of_rank(spec->name, parts_.communicator->rank()) : spec->name);
  }
  for (const ParameterEntry& entry : parts_.store.entries()) parameters.insert(entry.name);
  for (const NamedTensor& frozen : parts_.store.frozen()) parameters.insert(frozen.name);
  for (CheckpointTensor& tensor : contents.tensors) {
    const bool of_update =
        tensor.parameter.empty() ? of_optimizer.contains(tensor.state) : parameters.contains(tensor.parameter);
    if (of_update || tensor.state == kFileState) continue;  // files never change
    tensor.values = tensor.values.clone();
  }
  return contents;
}

void Keep::agree_on_room(SnapshotFolder& folder, std::uint64_t segment) {
  std::vector<std::int64_t> members;
  for (const std::string& text :
       parts_.communicator->all_gather_text("snapshots, members", std::to_string(folder.member()), "begin_snapshot")) {
    members.push_back(std::stoll(text));
  }
  // What others have left of snapshots that nobody will load makes room.
  if (parts_.communicator->local_rank() == 0) folder.remove_others(members, /*superseded=*/false);
  parts_.communicator->all_gather_text("snapshots, others", "", "begin_snapshot");
  const RoomNeeded own{segment, folder.allocated_next(), folder.allocated(), folder.free_bytes(),
                       folder.path().string()};
  const std::vector<int>& hosts = parts_.communicator->hosts();
  const auto host_of = [&](int rank) { return hosts[static_cast<std::size_t>(rank)]; };
  std::map<int, std::vector<RoomNeeded>> by_host;
  std::map<int, std::uint64_t> copies;
  int rank = 0;
  for (const std::string& text :
       parts_.communicator->all_gather_text("snapshots, room", own.text(), "begin_snapshot")) {
    by_host[host_of(rank)].push_back(RoomNeeded::read(text));
    for (int k = 1; k <= partner_copies(parts_.config.run.elastic.partners, hosts); ++k) {
      copies[host_of(partner_of(rank, k, hosts))] += 2 * by_host[host_of(rank)].back().segment;
    }
    ++rank;
  }
  for (const auto& [host, ranks] : by_host) check_room(ranks, copies[host]);
  snapshots_.note_room(std::move(members));
}

void Keep::connect_partners() {
  if (partner_copies(parts_.config.run.elastic.partners, parts_.communicator->hosts()) == 0) return;
  snapshots_.partners = parts_.communicator->duplicate_for_thread("snapshots");
}

void Keep::begin_snapshot(SnapshotFolder& folder, const Json& client_state) {
  refuse_to_save("begin_snapshot");
  if (snapshots_.is_newest()) return;
  const double begun = Snapshots::thread_seconds();
  at::NoGradGuard no_grad;
  settle_to_save("begin_snapshot");
  auto contents = std::make_shared<CheckpointContents>(snapshot_contents());
  const bool first_rank = parts_.communicator->rank() == 0;
  if (first_rank) contents->state = run_state(client_state);
  const auto places = snapshots_.layout_of(contents->tensors);
  const std::string state = first_rank ? state_text(contents->state) : "";
  const std::uint64_t bytes = places->sizes(first_rank ? with_room(state.size()) : 0).file();
  if (snapshots_.is_first()) {
    agree_on_room(folder, bytes);
    connect_partners();
  }
  if (parts_.communicator->local_rank() == 0) snapshots_.remove_others(folder);

  const bool elsewhere = std::any_of(contents->tensors.begin(), contents->tensors.end(),
                                     [](const CheckpointTensor& tensor) { return tensor.read != nullptr; });
  SnapshotSegment& segment = folder.next();
  const SnapshotFacts facts{.step = parts_.progress.global_steps,
                            .world = parts_.communicator->size(),
                            .rank = parts_.communicator->rank(),
                            .layout = layout_hash()};
  MonitorHost* rows = steps_.opened_monitors();
  const auto write = [=, this, &segment](SnapshotId id) {
    parts_.accelerator->bind_thread();
    segment.reserve(places->sizes(state.size()).file(), bytes);
    // A run that goes on from here must find the rows of all steps before.
    if (rows) rows->flush(kMonitorsMs);
    const double from = Snapshots::thread_seconds();
    SnapshotFacts now = facts;
    now.generation = id.generation;
    now.sequence = id.sequence;
    write_snapshot(segment, *places, contents->tensors, state, now);
    return Snapshots::thread_seconds() - from;
  };
  const auto write_and_send = [=, this, &segment, &folder](SnapshotId id) {
    if (!snapshots_.partners) return write(id);
    const double from = Snapshots::thread_seconds();
    const auto send = [&](const SnapshotSegment* sealed) {
      copy_to_partners(folder, sealed, id, parts_.config.run.elastic.partners, snapshots_.members(),
                       *snapshots_.partners);
    };
    try {
      write(id);
    } catch (...) {
      // The others wait for what this rank has to send.
      try {
        send(nullptr);
      } catch (const RuntimeFault&) {
      }
      throw;
    }
    send(&segment);
    return Snapshots::thread_seconds() - from;
  };
  // A store's values are read by the thread that also reads them for the update.
  snapshots_.start(folder, facts.step, write_and_send, /*now=*/elsewhere, begun);
}

}  // namespace capstan
