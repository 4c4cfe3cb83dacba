// `capstan checkpoint diff A B`

#include "core/checkpoint/checkpoint_diff.hpp"

#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/program.hpp"
#include "core/checkpoint/checkpoint_name.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/text/numbers.hpp"

namespace capstan::cli {
namespace {

constexpr std::size_t kMostLines = 40;  // of one list, where the output is text
constexpr int kTrouble = 2;             // as diff and cmp end

struct Side {
  std::string name;  // "ckpt/global_step4"
  CheckpointContents contents;
};

Side read_side(const std::string& checkpoint) {
  const CheckpointName name = CheckpointName::parse(checkpoint);
  const std::string tag = tag_of(name);
  return {name.dir + "/" + tag, read_checkpoint(name.dir, tag)};
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return Json(Json::Array(shape.begin(), shape.end())).dump();
}

std::string tensor_line(const TensorDifference& one) {
  std::string line = one.state + " of '" + one.parameter + "': ";
  if (one.shape_a != one.shape_b) return line + "shape " + shape_text(one.shape_a) + " / " + shape_text(one.shape_b);
  line += grouped(one.differing) + " of " + grouped(one.elements) + " elements differ, by " +
          short_number(one.largest_absolute) + " at most, relative " + short_number(one.largest_relative);
  return line + (one.dtype_a == one.dtype_b ? "" : ", dtype " + one.dtype_a + " / " + one.dtype_b);
}

std::string list_text(const std::string& title, const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  std::string text = title + "\n";
  for (std::size_t i = 0; i < lines.size() && i < kMostLines; ++i) text += "  " + lines[i] + "\n";
  if (lines.size() > kMostLines) {
    text += "  ... and " + grouped(static_cast<std::int64_t>(lines.size() - kMostLines)) + " more: --json lists all\n";
  }
  return text;
}

std::vector<std::string> state_lines(const std::vector<StateDifference>& differences) {
  std::vector<std::string> lines;
  for (const StateDifference& one : differences) lines.push_back(one.path + ": " + one.a.dump() + " / " + one.b.dump());
  return lines;
}

std::string diff_text(const Side& a, const Side& b, const CheckpointDiff& diff) {
  std::vector<std::string> tensors;
  for (const TensorDifference& one : diff.tensors) tensors.push_back(tensor_line(one));
  return "A: " + a.name + "\nB: " + b.name + "\n" + counted(diff.equal_tensors, "tensor") + " equal, " +
         grouped(static_cast<std::int64_t>(diff.tensors.size())) + " different, " +
         grouped(static_cast<std::int64_t>(diff.only_a.size())) + " only in A, " +
         grouped(static_cast<std::int64_t>(diff.only_b.size())) + " only in B\n" +
         list_text("different (A / B):", tensors) + list_text("only in A:", diff.only_a) +
         list_text("only in B:", diff.only_b) + list_text("counters (A / B):", state_lines(diff.counters)) +
         list_text("settings (A / B), which do not count:", state_lines(diff.settings));
}

Json names_json(const std::vector<std::string>& names) { return Json(Json::Array(names.begin(), names.end())); }

Json state_json(const std::vector<StateDifference>& differences) {
  Json json = Json::object();
  for (const StateDifference& one : differences) {
    json[one.path]["a"] = one.a;
    json[one.path]["b"] = one.b;
  }
  return json;
}

Json diff_json(const Side& a, const Side& b, const CheckpointDiff& diff) {
  Json json = Json::object();
  json["a"] = a.name;
  json["b"] = b.name;
  json["equal"] = diff.equal();
  json["equal_tensors"] = diff.equal_tensors;
  json["tensors"] = Json::array();
  for (const TensorDifference& one : diff.tensors) {
    Json tensor = Json::object();
    tensor["name"] = one.parameter;
    tensor["state"] = one.state;
    tensor["shape_a"] = Json(Json::Array(one.shape_a.begin(), one.shape_a.end()));
    tensor["shape_b"] = Json(Json::Array(one.shape_b.begin(), one.shape_b.end()));
    tensor["dtype_a"] = one.dtype_a;
    tensor["dtype_b"] = one.dtype_b;
    tensor["elements"] = one.elements;
    tensor["differing"] = one.differing;
    tensor["largest_absolute"] = one.largest_absolute;
    tensor["largest_relative"] = one.largest_relative;
    json["tensors"].push_back(std::move(tensor));
  }
  json["only_a"] = names_json(diff.only_a);
  json["only_b"] = names_json(diff.only_b);
  json["counters"] = state_json(diff.counters);
  json["settings"] = state_json(diff.settings);
  return json;
}

}  // namespace

int checkpoint_diff(const CheckpointDiffArguments& arguments) {
  try {
    const Side a = read_side(arguments.a), b = read_side(arguments.b);
    const CheckpointDiff diff = compare_checkpoints(a.contents, b.contents);
    print(arguments.json ? diff_json(a, b, diff).dump(2) + "\n" : diff_text(a, b, diff));
    return diff.equal() ? 0 : 1;
  } catch (const RuntimeFault& fault) {
    // 1 says that the two differ.
    log::error(fault.what());
    return kTrouble;
  }
}

}  // namespace capstan::cli
