// How an engine becomes what the newest whole snapshot holds.

#include <ATen/core/grad_mode.h>

#include "core/checkpoint/snapshot.hpp"
#include "core/keep/keep.hpp"
#include "core/keep/snapshot_parts.hpp"
#include "core/log.hpp"

namespace capstan {

std::optional<Json> Keep::load_snapshot(SnapshotFolder& folder) {
  background_save_.finish();
  snapshots_.forget();
  at::NoGradGuard no_grad;
  if (const std::string failure = parts_.store.give_up_what_failed(); !failure.empty()) {
    log::warning("load_snapshot: what was under way has failed, and the snapshot takes its place: " + failure);
  }
  const auto warn = [&](const std::string& sentence) {
    if (parts_.communicator->rank() == 0) log::warning(sentence + " It is not used.");
  };
  const SnapshotFolder::Found found = folder.find();
  const FoundSnapshots all = found_by_all(found, *parts_.communicator);
  for (const std::string& sentence : all.damaged) warn(sentence);
  for (const SnapshotCandidate& candidate : all.candidates) {
    if (!candidate.is_whole()) continue;
    const std::string where =
        "snapshot of step " + std::to_string(candidate.step) + " in '" + folder.path().string() + "'";
    if (candidate.layout != layout_hash()) {
      warn(where + ": it is of another run: its model or its optimizer is another one.");
      continue;
    }
    if (auto client_state = take_snapshot(found, candidate, where)) {
      folder.keep(candidate.id, candidate.step);
      return client_state;
    }
  }
  return std::nullopt;
}

std::optional<Json> Keep::take_snapshot(const SnapshotFolder::Found& found, const SnapshotCandidate& candidate,
                                        const std::string& where) {
  std::string defect;
  const CheckpointContents contents = read_parts(candidate, found, taken_tensors(), *parts_.communicator, defect);
  SavedRun saved;
  try {
    if (defect.empty()) check_parts(contents.tensors, where);
    if (defect.empty()) saved = check(contents, CheckpointLookup(contents, where));
  } catch (const std::exception& error) {
    defect = error.what();
  }
  // Not as_one(): that a rank is lost meanwhile is no fault of the snapshot.
  for (const std::string& told :
       parts_.communicator->all_gather_text("load_snapshot, check", defect, "load_snapshot")) {
    if (told.empty()) continue;
    if (parts_.communicator->rank() == 0)
      log::warning(told + " The snapshot of step " + std::to_string(candidate.step) + " is not used.");
    return std::nullopt;
  }
  take_over(contents, saved, where, "load_snapshot");
  const Json* client_state = contents.state.find("client_state");
  return client_state ? *client_state : Json::object();
}

}  // namespace capstan
