// `capstan checkpoint list` and `capstan checkpoint prune`

#include "core/checkpoint/checkpoint_list.hpp"

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/program.hpp"
#include "core/text/numbers.hpp"
#include "core/text/table.hpp"

namespace capstan::cli {
namespace {

/// "2026-11-29 09:12:44", as the machine's clock shows it, or in UTC as ISO 8601 has it.
std::string time_text(std::int64_t seconds, bool utc) {
  const std::time_t time = seconds;
  std::tm parts{};
  utc ? gmtime_r(&time, &parts) : localtime_r(&time, &parts);
  char text[40] = "";
  std::strftime(text, sizeof text, utc ? "%Y-%m-%dT%H:%M:%SZ" : "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

std::string state_text(const ListedCheckpoint& one) {
  std::string text = one.defect.empty() ? "whole" : "damaged";
  if (one.is_latest) text += ", latest";
  if (one.is_best) text += ", best";
  return text;
}

std::string list_text(const std::string& dir, const CheckpointList& list) {
  if (list.checkpoints.empty() && list.unfinished.empty()) return "no checkpoints in " + dir + "\n";
  std::vector<std::vector<std::string>> rows = {{"tag", "step", "size", "written", "by", "state"}};
  for (const ListedCheckpoint& one : list.checkpoints) {
    rows.push_back({one.tag, one.step ? grouped(*one.step) : "-", bytes_text(one.bytes), time_text(one.written, false),
                    one.writer.empty() ? "-" : one.writer, state_text(one)});
  }
  std::string text = rows.size() > 1 ? table_text(rows) : "";
  for (const ListedCheckpoint& one : list.checkpoints) {
    if (!one.defect.empty()) text += one.tag + ": " + one.defect + "\n";
  }
  for (const std::string& name : list.unfinished) {
    text += name + ": is being written or deleted, or a save or a deletion that ended early has left it\n";
  }
  return text + (list.defect.empty() ? "" : list.defect + "\n");
}

Json list_json(const std::string& dir, const CheckpointList& list) {
  Json json = Json::object();
  json["folder"] = dir;
  json["checkpoints"] = Json::array();
  for (const ListedCheckpoint& one : list.checkpoints) {
    Json item = Json::object();
    item["tag"] = one.tag;
    item["step"] = one.step ? Json(*one.step) : Json();
    item["bytes"] = one.bytes;
    item["written"] = time_text(one.written, true);
    item["written_by"] = one.writer.empty() ? Json() : Json(one.writer);
    item["whole"] = one.defect.empty();
    item["latest"] = one.is_latest;
    item["best"] = one.is_best;
    item["defect"] = one.defect.empty() ? Json() : Json(one.defect);
    json["checkpoints"].push_back(std::move(item));
  }
  json["unfinished"] = Json(Json::Array(list.unfinished.begin(), list.unfinished.end()));
  json["defect"] = list.defect.empty() ? Json() : Json(list.defect);
  return json;
}

std::string without_slash(std::string dir) {
  while (dir.size() > 1 && dir.ends_with('/')) dir.pop_back();
  return dir;
}

}  // namespace

int checkpoint_list(const CheckpointListArguments& arguments) {
  const std::string dir = without_slash(arguments.dir);
  const CheckpointList list = list_checkpoints(dir);
  print(arguments.json ? list_json(dir, list).dump(2) + "\n" : list_text(dir, list));
  return 0;
}

int checkpoint_prune(const CheckpointPruneArguments& arguments) {
  const std::string dir = without_slash(arguments.dir);
  const CheckpointList list = list_checkpoints(dir);
  const PrunePlan plan = plan_prune(list, arguments.keep);
  std::string text;
  std::uint64_t bytes = 0;
  const char* verb = arguments.dry_run ? "would delete " : "deletes ";
  for (const ListedCheckpoint& one : plan.doomed) {
    bytes += one.bytes;
    text += verb + one.tag + ", " + bytes_text(one.bytes) + (one.defect.empty() ? "" : ", which is damaged") + "\n";
  }
  for (const auto& [tag, reason] : plan.spared) text += "keeps " + tag + ", which '" + reason + "' names\n";
  for (const ListedCheckpoint& one : list.checkpoints) {
    if (!one.defect.empty()) text += "damaged: " + one.tag + ": " + one.defect + "\n";
  }
  print(text);
  if (!arguments.dry_run) prune_listed(dir, plan);
  const auto count = static_cast<std::int64_t>(plan.doomed.size());
  print(count == 0 ? "nothing to delete in " + dir + "\n"
                   : (arguments.dry_run ? "would free " : "freed ") + bytes_text(bytes) + " of " +
                         counted(count, "checkpoint") + " in " + dir + "\n");
  return 0;
}

}  // namespace capstan::cli
