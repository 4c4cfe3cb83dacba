#include "core/checkpoint/export.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "core/checkpoint/carried_files.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/deepspeed/notes.hpp"
#include "core/checkpoint/output_file.hpp"
#include "core/checkpoint/pt_export.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/checkpoint/state_reader.hpp"
#include "core/errors.hpp"

namespace capstan {
namespace {

/// Fills `out` with the elements from `from` on of a tensor that lies in parts.
void copy_elements(const std::vector<const CheckpointTensor*>& parts, std::int64_t from, const at::Tensor& out) {
  for (const CheckpointTensor* part : parts) {
    const std::int64_t begin = std::max(from, part->offset);
    const std::int64_t end = std::min(from + out.numel(), part->offset + part->values.numel());
    if (begin >= end) continue;
    out.narrow(0, begin - from, end - begin)
        .copy_(part->values.view({-1}).narrow(0, begin - part->offset, end - begin));
  }
}

/// Parameters and buffers, each one tensor of its full shape, in the checkpoint's order. They stay in the checkpoint's
/// files, which `contents` has mapped, until they are written.
std::vector<SafetensorsEntry> whole_weights(const CheckpointContents& contents, const std::string& where,
                                            std::optional<at::ScalarType> dtype) {
  std::vector<SafetensorsEntry> weights;
  const auto room = std::make_shared<ValuesRoom>();
  std::map<std::string, std::vector<const CheckpointTensor*>> parts;
  const std::set<std::string> not_the_models = trained_states(contents.state, where + "/state.json");
  for (const CheckpointTensor& part : contents.tensors) {
    if (not_the_models.contains(part.parameter)) continue;
    if (part.state == "param" || part.state == "buffer") parts[part.parameter].push_back(&part);
  }
  for (const CheckpointTensor& part : contents.tensors) {
    const auto found = parts.find(part.parameter);
    if (found == parts.end() || found->second.front() != &part) continue;
    const at::ScalarType type = dtype && part.values.is_floating_point() ? *dtype : part.values.scalar_type();
    weights.push_back({part.parameter, values_elsewhere(part.shape, type),
                       [room, type, of = found->second](std::int64_t from, std::int64_t count) {
                         at::Tensor out = room->of(count, type);
                         copy_elements(of, from, out);
                         return out;
                       }});
  }
  return weights;
}

/// At stage 3 the 16-bit weights are exported where the configuration asks for them, as DeepSpeed has it.
void check_gather_key(const CheckpointContents& contents, const std::string& where, at::ScalarType dtype) {
  constexpr const char* kKey = "stage3_gather_16bit_weights_on_model_save";
  if (dtype != at::kHalf && dtype != at::kBFloat16) return;
  const Json* config = contents.state.find("config");
  const Json* zero = config ? config->find("zero_optimization") : nullptr;
  const Json* world = contents.state.find("world_size");
  if (!zero || !zero->find("stage") || *zero->find("stage") != Json(3) || !world || *world == Json(1)) return;
  if (const Json* gathers = zero->find(kKey); gathers && *gathers == Json(true)) return;
  throw RuntimeFault("checkpoint '" + where +
                     "': it was trained at ZeRO stage 3, whose 16-bit weights are exported only where "
                     "zero_optimization." +
                     kKey + " is true. Train on with that key, or export in float32.");
}

/// Further names of the weights, as state.json tells them: of those that are left out, none.
TiedNames tied_names(const CheckpointContents& contents, const std::vector<SafetensorsEntry>& weights,
                     const std::string& where) {
  TiedNames tied;
  if (contents.state.find("tied") == nullptr) return tied;
  std::set<std::string> names;
  for (const SafetensorsEntry& weight : weights) names.insert(weight.name);
  const StateReader state(contents.state, where + "/state.json");
  for (const auto& [name, first] : state.object("tied").texts()) {
    if (names.contains(first) && !names.contains(name)) tied[name] = first;
  }
  return tied;
}

}  // namespace

std::set<std::string> trained_states(const Json& state, const std::string& where) {
  std::set<std::string> names;
  const Json* list = state.find("trained_states");
  if (list == nullptr) return names;
  if (!list->is_array()) throw RuntimeFault(where + ": trained_states must be a list, got " + list->dump() + ".");
  for (const Json& name : list->as_array()) {
    if (!name.is_string()) throw RuntimeFault(where + ": trained_states must be texts, got " + name.dump() + ".");
    names.insert(name.as_string());
  }
  return names;
}

std::vector<SafetensorsEntry> exported_weights(const CheckpointContents& contents, const std::string& where,
                                               std::optional<at::ScalarType> dtype) {
  if (dtype) check_gather_key(contents, where, *dtype);
  std::vector<SafetensorsEntry> weights = whole_weights(contents, where, dtype);
  if (weights.empty()) throw RuntimeFault("checkpoint '" + where + "': it holds no weights to export.");
  return weights;
}

void export_hf(const std::filesystem::path& dir, const std::string& tag,
               const std::function<HfFormat(const Json& config)>& format_of, const std::filesystem::path& out,
               std::optional<at::ScalarType> dtype) {
  const CheckpointContents contents = read_checkpoint(dir, tag);
  log_notes(contents.state, kWeightNotes, (dir / tag).string());
  const Json* config = contents.state.find("config");
  write_hf_folder(out, format_of(config ? *config : Json::object()),
                  exported_weights(contents, (dir / tag).string(), dtype));
  write_carried_files(out, carried_files_of(contents));
}

void export_checkpoint(const std::filesystem::path& dir, const std::string& tag, ExportFormat format,
                       const std::filesystem::path& out, std::optional<at::ScalarType> dtype) {
  const CheckpointContents contents = read_checkpoint(dir, tag);
  const std::string where = (dir / tag).string();
  log_notes(contents.state, kWeightNotes, where);
  const std::vector<SafetensorsEntry> weights = exported_weights(contents, where, dtype);
  if (format == ExportFormat::kPt) return export_pt(out, weights, tied_names(contents, weights, where));
  write_aside(out, [&](const std::filesystem::path& aside) {
    Json metadata = Json::object();
    metadata["format"] = "pt";  // what readers of PyTorch weights look for
    write_safetensors(aside, weights, metadata);
  });
}

}  // namespace capstan
