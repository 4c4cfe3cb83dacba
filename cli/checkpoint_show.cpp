#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.hpp"
#include "cli/program.hpp"
#include "core/checkpoint/carried_files.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/checkpoint_folder.hpp"
#include "core/checkpoint/checkpoint_index.hpp"
#include "core/checkpoint/checkpoint_name.hpp"
#include "core/checkpoint/deepspeed/notes.hpp"
#include "core/checkpoint/dtypes.hpp"
#include "core/checkpoint/trainer_folder.hpp"
#include "core/checkpoint/whole_tensors.hpp"
#include "core/keep/checkpoint_lookup.hpp"
#include "core/registry/file_hash.hpp"
#include "core/text/numbers.hpp"
#include "core/text/table.hpp"

namespace capstan::cli {
namespace {

/// SHA-256 of the values as float32, little-endian, row-major.
std::string hash_of(const WholeTensor& tensor) {
  constexpr std::int64_t kBlock = 1 << 20;
  ElementReader reader(tensor);
  at::Tensor block;
  return sha256_of([&]() -> std::span<const std::byte> {
    block = reader.next(kBlock);
    if (!block.defined()) return {};
    block = block.to(at::kFloat);
    return {static_cast<const std::byte*>(block.const_data_ptr()), block.nbytes()};
  });
}

Json tensors_json(const std::vector<WholeTensor>& tensors, bool hash) {
  Json list = Json::array();
  for (const WholeTensor& tensor : tensors) {
    const CheckpointTensor& first = tensor.first();
    Json json = Json::object();
    json["name"] = first.parameter;
    json["state"] = first.state;
    json["dtype"] = safetensors_dtype(first.values.scalar_type());
    json["shape"] = Json(Json::Array(first.shape.begin(), first.shape.end()));
    if (hash) json["sha256"] = hash_of(tensor);
    list.push_back(std::move(json));
  }
  return list;
}

/// The ZeRO stage of the configuration that the run had; null where it says nothing.
Json stage_of(const Json& state) {
  const Json* config = state.find("config");
  const Json* zero = config != nullptr ? config->find("zero_optimization") : nullptr;
  const Json* stage = zero != nullptr ? zero->find("stage") : nullptr;
  return stage != nullptr && stage->is_integer() ? *stage : Json();
}

Json type_of(const Json& state, const char* kind) {
  const Json* component = state.find(kind);
  const Json* type = component != nullptr ? component->find("type") : nullptr;
  return type != nullptr ? *type : Json();
}

Json member_or_null(const Json& state, const char* name) {
  const Json* member = state.find(name);
  return member != nullptr ? *member : Json();
}

std::vector<std::string> other_tags(const CheckpointName& name, const std::string& tag) {
  std::vector<std::string> tags = readable_tags(name.dir);
  std::erase(tags, tag);
  return tags;
}

Json summary(const CheckpointName& name, const std::string& tag, const CheckpointContents& contents, bool hash) {
  const Json& state = contents.state;
  Json json = Json::object();
  json["folder"] = name.dir;
  json["tag"] = tag;
  const Json* writer = state.find("written_by");
  json["written_by"] = writer != nullptr ? *writer : Json("Capstan");
  json["zero_stage"] = stage_of(state);
  for (const char* member : {"world_size", "global_steps", "updates", "skipped_steps", "global_samples", "loss_scaler",
                             "groups", "tied", "client_state"}) {
    json[member] = member_or_null(state, member);
  }
  json["optimizer"] = type_of(state, "optimizer");
  json["scheduler"] = type_of(state, "scheduler");
  json["tensors"] = tensors_json(whole_tensors(contents), hash);
  json["notes"] = Json::array();
  for (const char* list : {kWeightNotes, kNotes}) {
    const Json* notes = state.find(list);
    for (const Json& note : notes != nullptr ? notes->as_array() : Json::Array()) json["notes"].push_back(note);
  }
  if (const auto trainer = read_trainer_state(name.dir)) {
    json["trainer"]["step"] = trainer->step;
    json["trainer"]["epoch"] = trainer->epoch ? Json(*trainer->epoch) : Json();
  }
  json["other_tags"] = Json::array();
  for (const std::string& other : other_tags(name, tag)) json["other_tags"].push_back(other);
  return json;
}

std::string text_or(const Json& value, const char* otherwise) {
  return value.is_string() ? value.as_string() : value.is_null() ? otherwise : value.dump();
}

std::vector<std::string> names_of(const Json& object) {
  std::vector<std::string> names;
  if (!object.is_object()) return names;
  for (const auto& [name, value] : object.as_object()) names.push_back(name);
  return names;
}

std::string line_of(const char* title, const std::vector<std::string>& words) {
  return words.empty() ? "" : "  " + std::string(title) + joined(words) + "\n";
}

/// Counts of parameters, and the names of states, buffers and carried files.
std::string tensors_text(const Json& tensors) {
  std::int64_t parameters = 0, elements = 0;
  std::set<std::string> buffers, states, files;
  for (const Json& tensor : tensors.as_array()) {
    const std::string &state = tensor.at("state").as_string(), &name = tensor.at("name").as_string();
    if (without_of(state) == kBuffer) {
      buffers.insert(name);
    } else if (state == kFileState) {
      files.insert(name);
    } else if (state != kParam && !name.empty()) {
      states.insert(state);
    }
    if (state != kParam) continue;
    ++parameters;
    std::int64_t count = 1;
    for (const Json& size : tensor.at("shape").as_array()) count *= size.as_integer();
    elements += count;
  }
  return "  " + counted(parameters, "parameter") + ", " + grouped(elements) + " elements\n" +
         line_of("states of the optimizer: ", {states.begin(), states.end()}) +
         line_of("buffers: ", {buffers.begin(), buffers.end()}) + line_of("files: ", {files.begin(), files.end()});
}

/// What the Trainer of transformers says of the folder.
std::string trainer_text(const Json& json) {
  const Json* trainer = json.find("trainer");
  if (trainer == nullptr) return "";
  const Json& epoch = trainer->at("epoch");
  return "  transformers' Trainer: step " + grouped(trainer->at("step").as_integer()) +
         (epoch.is_null() ? "" : ", epoch " + short_number(epoch.as_number())) + "\n";
}

std::string summary_text(const Json& json) {
  const auto number = [&](const char* name) { return json.at(name).is_integer() ? json.at(name).as_integer() : 0; };
  std::string text =
      json.at("tag").as_string() + ", by " + json.at("written_by").as_string() + ": ZeRO stage " +
      text_or(json.at("zero_stage"), "0") + ", " + counted(number("world_size"), "process", "processes") + "\n  step " +
      grouped(number("global_steps")) + " (" + grouped(number("skipped_steps")) + " skipped)" +
      (json.at("global_samples").is_null() ? "" : ", " + counted(number("global_samples"), "sample")) + "; optimizer " +
      text_or(json.at("optimizer"), "not named") + ", scheduler " + text_or(json.at("scheduler"), "none") + "\n" +
      trainer_text(json) + tensors_text(json.at("tensors"));
  std::vector<std::string> tied;
  for (const std::string& name : names_of(json.at("tied"))) {
    tied.push_back(name + " is " + json.at("tied").at(name).as_string());
  }
  text += line_of("tied: ", tied) + line_of("client state: ", names_of(json.at("client_state")));
  for (const Json& note : json.at("notes").as_array()) text += "  " + note.as_string() + "\n";
  for (const Json& tensor : json.at("tensors").as_array()) {
    const Json* hash = tensor.find("sha256");
    if (hash == nullptr) continue;
    text +=
        "  " + hash->as_string() + "  " + tensor.at("state").as_string() + "  " + tensor.at("name").as_string() + "\n";
  }
  std::vector<std::string> others;
  for (const Json& tag : json.at("other_tags").as_array()) others.push_back(tag.as_string());
  return text + line_of("other tags: ", others);
}

}  // namespace

int checkpoint_show(const CheckpointShowArguments& arguments) {
  const CheckpointName name = CheckpointName::parse(arguments.checkpoint);
  const std::string tag = tag_of(name);
  // Without hashes no values are read, and nothing tells whether they are whole.
  const CheckpointContents contents =
      read_checkpoint(name.dir, tag, [&](const CheckpointTensor&) { return arguments.hash; });
  const Json json = summary(name, tag, contents, arguments.hash);
  print(arguments.json ? json.dump(2) + "\n" : summary_text(json));
  return 0;
}

}  // namespace capstan::cli
