#include "core/run/save_folder.hpp"

#include <cstdlib>
#include <filesystem>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/checkpoint_folder.hpp"
#include "core/checkpoint/checkpoint_name.hpp"
#include "core/comm/communicator.hpp"
#include "core/comm/run_identity.hpp"
#include "core/errors.hpp"

namespace capstan {
namespace {

constexpr const char* kParents = "restarting_parents";

bool is_same_folder(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code error;
  if (std::filesystem::equivalent(a, b, error)) return true;
  const auto plain = [](const std::filesystem::path& path) { return absolute(path / "").lexically_normal(); };
  return plain(a) == plain(b);
}

}  // namespace

SaveFolder::SaveFolder(const LoadedConfig& loaded) : loaded_(loaded) {
  const std::string parent = restarting_parent(process_environment());
  for (std::string& told : loaded.communicator->all_gather_text("start, parents", parent)) {
    if (!told.empty()) parents_.insert(std::move(told));
  }
}

bool SaveFolder::leads() const {
  const Communicator& ranks = *loaded_.communicator;
  return ranks.rank() == 0 || (loaded_.config.checkpoint.use_node_local_storage && ranks.local_rank() == 0);
}

/// Whether the checkpoint is of a start of this run whose parent has started this process too.
bool SaveFolder::restarts(const std::string& tag) const {
  if (parents_.empty()) return false;
  try {
    const Json state = read_checkpoint_state(loaded_.config.run.save_dir, tag);
    const Json* told = state.at("client_state").find(kParents);
    if (told == nullptr || !told->is_array()) return false;
    for (const Json& parent : told->as_array()) {
      if (parent.is_string() && parents_.contains(parent.as_string())) return true;
    }
  } catch (const std::exception&) {
    // Who wrote a checkpoint that cannot be read is not known.
  }
  return false;
}

/// Why a run that continues `resume` may not save into the folder; empty: it may.
std::string SaveFolder::refusal(const std::string& resume) const {
  const RunConfig& run = loaded_.config.run;
  if (run.save_dir.empty() || run.overwrite || !leads()) return "";
  if (!resume.empty() && is_same_folder(CheckpointName::parse(resume).dir, run.save_dir)) return "";
  const std::string there = checkpoint_there(run.save_dir);
  if (there.empty() || restarts(there)) return "";
  // A first save that was killed leaves a checkpoint, and nothing that names it as the latest.
  std::error_code error;
  const bool named = std::filesystem::exists(std::filesystem::path(run.save_dir) / kLatestName, error);
  return "--save " + run.save_dir + ": the folder holds checkpoints of another run, '" + there +
         "' for instance. To continue that run, give --resume " + run.save_dir + (named ? "" : ":" + there) +
         ". To replace its checkpoints where names are equal, give --overwrite. To keep both runs, name another "
         "folder.";
}

void SaveFolder::refuse_other_run(const std::string& resume) const {
  std::string why;
  try {
    why = refusal(resume);
  } catch (const std::exception& error) {
    why = error.what();
  }
  // All ranks throw the same text, which is printed once then.
  for (const std::string& told : loaded_.communicator->all_gather_text("start, folder of checkpoints", why)) {
    if (!told.empty()) throw RuntimeFault(told);
  }
}

void SaveFolder::go_on(const std::string& run, std::int64_t step) {
  const RunConfig& config = loaded_.config.run;
  std::error_code error;
  own_.clear();
  if (config.keep == 0 || !leads() || !std::filesystem::is_directory(config.save_dir, error)) return;
  for (const std::string& tag : checkpoint_tags(config.save_dir)) {
    if (step_of(tag) < 0 || step_of(tag) > step) continue;
    try {
      const Json state = read_checkpoint_state(config.save_dir, tag);
      const Json* saved = state.find("run");
      if ((saved && saved->is_string() ? saved->as_string() : "") == run) own_.insert(tag);
    } catch (const RuntimeFault&) {
      // A damaged checkpoint is left alone.
    }
  }
}

Json SaveFolder::restarting_parents() const {
  Json list = Json::array();
  for (const std::string& parent : parents_) list.push_back(parent);
  return list;
}

void SaveFolder::mark_best(const std::string& tag) const {
  if (leads()) note_best(loaded_.config.run.save_dir, tag);
}

void SaveFolder::add(const std::string& tag) {
  own_.insert(tag);
  if (leads()) prune_checkpoints(loaded_.config.run.save_dir, loaded_.config.run.keep, own_);
}

}  // namespace capstan
