// `capstan checkpoint verify`

#include "core/checkpoint/checkpoint_verify.hpp"

#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/program.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/checkpoint_list.hpp"
#include "core/checkpoint/checkpoint_name.hpp"
#include "core/checkpoint/trainer_folder.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/text/numbers.hpp"

namespace capstan::cli {
namespace {

/// The checkpoint that is meant; all of the folder with --all. A folder checkpoint-<N> of transformers is one as a
/// whole.
std::vector<std::string> tags_of(const CheckpointVerifyArguments& arguments, CheckpointName& name) {
  if (arguments.all) {
    std::vector<std::string> tags;
    for (const ListedCheckpoint& one : list_checkpoints(name.dir).checkpoints) tags.push_back(one.tag);
    if (tags.empty()) throw RuntimeFault("checkpoints in '" + name.dir + "': there are none.");
    return tags;
  }
  const std::filesystem::path folder(name.dir);
  if (name.tag.empty() && is_trainer_folder(folder) && trainer_step_of(folder.filename().string()) >= 0) {
    name = {folder.has_parent_path() ? folder.parent_path().string() : ".", folder.filename().string()};
  }
  return {tag_of(name)};
}

Json verified_json(const std::string& tag, const VerifiedCheckpoint& verified) {
  Json json = Json::object();
  json["tag"] = tag;
  json["whole"] = true;
  json["written_by"] = verified.writer;
  json["files"] = verified.files;
  json["tensors"] = verified.tensors;
  json["bytes"] = verified.bytes;
  return json;
}

std::string verified_text(const std::string& tag, const VerifiedCheckpoint& verified) {
  return tag + ", by " + verified.writer + ": whole: " + counted(verified.tensors, "tensor") + ", " +
         counted(verified.files, "file") + ", " + bytes_text(verified.bytes) + "\n";
}

}  // namespace

int checkpoint_verify(const CheckpointVerifyArguments& arguments) {
  CheckpointName name = CheckpointName::parse(arguments.checkpoint);
  Json list = Json::array();
  bool whole = true;
  for (const std::string& tag : tags_of(arguments, name)) {
    try {
      const VerifiedCheckpoint verified = verify_checkpoint(name.dir, tag);
      arguments.json ? list.push_back(verified_json(tag, verified)) : print(verified_text(tag, verified));
    } catch (const RuntimeFault& fault) {
      whole = false;
      log::error(fault.what());
      Json damaged = Json::object();
      damaged["tag"] = tag;
      damaged["whole"] = false;
      damaged["defect"] = fault.what();
      list.push_back(std::move(damaged));
    }
  }
  if (arguments.json) print(list.dump(2) + "\n");
  return whole ? 0 : 1;
}

}  // namespace capstan::cli
