#include "core/checkpoint/checkpoint_list.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/checkpoint_folder.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/checkpoint/trainer_folder.hpp"
#include "core/errors.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLatestUniversalName = "latest_universal";  // of DeepSpeed's ds_to_universal

/// Adds the size and the time of a file, or of all files of a folder.
void add_files(const fs::path& path, ListedCheckpoint& listed) {
  std::error_code error;
  const auto add = [&](const fs::path& file) {
    struct stat facts {};
    if (lstat(file.c_str(), &facts) != 0 || !S_ISREG(facts.st_mode)) return;
    listed.bytes += static_cast<std::uint64_t>(facts.st_size);
    listed.written = std::max<std::int64_t>(listed.written, facts.st_mtim.tv_sec);
  };
  fs::recursive_directory_iterator entries(path, error);
  for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) add(entries->path());
}

/// Takes the step and the writer from the checkpoint, whose structure is checked. Values are read where they alone tell
/// to which parameters the states of an optimizer belong: DeepSpeed's of stage 0.
void look_into(const fs::path& dir, const std::string& tag, ListedCheckpoint& listed) {
  try {
    const Json state = read_checkpoint(dir, tag, [](const CheckpointTensor&) { return false; }).state;
    const Json* writer = state.find("written_by");
    listed.writer = writer != nullptr && writer->is_string() ? writer->as_string() : "Capstan";
    const Json* steps = state.find("global_steps");
    if (steps != nullptr && steps->is_integer()) listed.step = steps->as_integer();
  } catch (const RuntimeFault& fault) {
    listed.defect = fault.what();
    if (step_of(tag) >= 0) listed.step = step_of(tag);
  }
}

/// A folder of the Trainer is whole where the checkpoint in it is, and its safetensors files are by header and size.
/// `best`: the folder that it names as the best one.
ListedCheckpoint look_into_trainer_folder(const fs::path& dir, const std::string& name, std::string& best) {
  ListedCheckpoint listed{.tag = name, .writer = "transformers", .step = trainer_step_of(name)};
  try {
    const auto state = read_trainer_state(dir / name);
    listed.step = state->step;
    best = state->best;
    for (const std::string& file : folder_names(dir / name)) {
      if (file.ends_with(".safetensors")) read_safetensors(dir / name / file);
    }
    std::error_code error;
    if (!fs::exists(dir / name / kLatestName, error)) return listed;
    ListedCheckpoint inner;
    look_into(dir / name, latest_tag(dir / name), inner);
    if (!inner.writer.empty()) listed.writer += ", " + inner.writer;
    listed.defect = inner.defect;
  } catch (const RuntimeFault& fault) {
    listed.defect = fault.what();
  }
  return listed;
}

/// The tag that one of the files holds; empty where there is no such file, or `defect` says why it cannot be read.
std::string named_in(const fs::path& dir, const std::string& file, std::string& defect) {
  std::error_code error;
  const fs::file_type kind = fs::status(dir / file, error).type();
  if (kind == fs::file_type::not_found) return "";
  // Any name but `latest` may be that of a checkpoint's folder.
  if (kind == fs::file_type::directory && file != kLatestName) return "";
  try {
    return tag_in_file(dir, file.c_str());
  } catch (const RuntimeFault& fault) {
    defect = fault.what();
    return "";
  }
}

/// Throws RuntimeFault where one of the files names the tag by now, or cannot be read.
void refuse_named(const fs::path& dir, const std::string& tag) {
  for (const char* file : {kLatestName, kLatestUniversalName, kBestName}) {
    std::string defect;
    const std::string named = named_in(dir, file, defect);
    if (!defect.empty()) throw RuntimeFault(defect + " '" + tag + "' stays.");
    if (named != tag) continue;
    throw RuntimeFault("checkpoints in '" + dir.string() + "': '" + tag +
                       "' has become the latest or the best one meanwhile, and stays. Run the command again.");
  }
}

}  // namespace

CheckpointList list_checkpoints(const fs::path& dir) {
  CheckpointList list;
  std::error_code error;
  if (!fs::is_directory(dir, error)) {
    throw RuntimeFault("checkpoints in '" + dir.string() + "': there is no such folder.");
  }
  std::set<std::string> best = {named_in(dir, kBestName, list.defect)};
  for (const std::string& name : folder_names(dir)) {
    if (name.starts_with('.')) continue;
    if (trainer_step_of(name) < 0 || !is_trainer_folder(dir / name)) continue;
    std::string best_of_trainer;
    list.checkpoints.push_back(look_into_trainer_folder(dir, name, best_of_trainer));
    best.insert(best_of_trainer);
  }
  for (const std::string& tag : readable_tags(dir)) {
    list.checkpoints.push_back({.tag = tag});
    look_into(dir, tag, list.checkpoints.back());
  }
  const std::set<std::string> latest = {named_in(dir, kLatestName, list.defect),
                                        named_in(dir, kLatestUniversalName, list.defect)};
  for (ListedCheckpoint& listed : list.checkpoints) {
    add_files(dir / listed.tag, listed);
    listed.is_latest = latest.contains(listed.tag);
    listed.is_best = best.contains(listed.tag);
  }
  std::sort(list.checkpoints.begin(), list.checkpoints.end(),
            [](const auto& a, const auto& b) { return std::tie(a.step, a.tag) < std::tie(b.step, b.tag); });
  list.unfinished = unfinished_names(dir);
  return list;
}

PrunePlan plan_prune(const CheckpointList& list, std::int64_t keep) {
  if (!list.defect.empty()) {
    throw RuntimeFault(list.defect +
                       " Nothing is deleted, because the file may name a checkpoint that has to stay. Write the name "
                       "into it, or delete the file.");
  }
  PrunePlan plan;
  const auto number_of = [](const ListedCheckpoint& one) {
    return std::max(step_of(one.tag), trainer_step_of(one.tag));
  };
  std::vector<const ListedCheckpoint*> numbered;
  for (const ListedCheckpoint& one : list.checkpoints) {
    if (number_of(one) >= 0) numbered.push_back(&one);
  }
  std::sort(numbered.begin(), numbered.end(),
            [&](const auto* a, const auto* b) { return number_of(*a) < number_of(*b); });
  std::int64_t whole = 0;
  std::size_t first_kept = numbered.size();
  while (first_kept > 0 && whole < keep) {
    --first_kept;
    if (numbered[first_kept]->defect.empty()) ++whole;
  }
  if (whole == 0) return plan;
  for (std::size_t i = 0; i < first_kept; ++i) {
    const ListedCheckpoint& one = *numbered[i];
    if (one.is_latest || one.is_best) {
      plan.spared.emplace_back(one.tag, one.is_latest ? "latest" : "best");
    } else {
      plan.doomed.push_back(one);
    }
  }
  return plan;
}

void prune_listed(const fs::path& dir, const PrunePlan& plan) {
  std::vector<fs::path> renamed;
  const auto remove_renamed = [&] {
    for (const fs::path& path : renamed) remove_or_warn(path);
  };
  try {
    for (const ListedCheckpoint& one : plan.doomed) {
      // A lock a checkpoint, so that a run which saves in between waits for one rename at most.
      const FolderLock lock(dir);
      refuse_named(dir, one.tag);
      const fs::path aside = move_out(dir, dir, one.tag);
      if (!aside.empty()) renamed.push_back(aside);
    }
  } catch (...) {
    remove_renamed();
    throw;
  }
  remove_renamed();
}

}  // namespace capstan
