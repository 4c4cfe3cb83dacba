// How an engine takes parameter values from a file that is not a checkpoint of its own.

#include <ATen/core/grad_mode.h>

#include <filesystem>
#include <set>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/checkpoint_name.hpp"
#include "core/checkpoint/deepspeed/notes.hpp"
#include "core/checkpoint/hf_folder.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/comm/as_one.hpp"
#include "core/errors.hpp"
#include "core/keep/checkpoint_lookup.hpp"
#include "core/keep/keep.hpp"
#include "core/log.hpp"
#include "core/pretrained/gguf_header.hpp"

namespace capstan {
namespace {

/// DIR:TAG, or a folder with the file `latest`. The Trainer of transformers leaves weights beside such a file, with
/// their config.json.
bool is_checkpoint(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) return false;
  const CheckpointName name = CheckpointName::parse(path);
  const std::filesystem::path dir(name.dir);
  if (!name.tag.empty()) return std::filesystem::is_directory(dir, error);
  return std::filesystem::exists(dir / "latest", error) && !std::filesystem::exists(dir / "config.json", error);
}

/// Whether others have written it, with names of their own and perhaps a tokenizer beside the weights.
bool is_pretrained(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error) || names_gguf(path);
}

std::vector<SafetensorsEntry> read_entries(const std::string& path, const Model& model) {
  if (!is_pretrained(path)) return read_safetensors(path);
  const HfFormat format = hf_format(model.describe(), model.description());
  return names_gguf(path) ? read_gguf_weights(path, format) : read_hf_folder(path, format);
}

GivenWeights read_values(const std::string& file, const Model& model) {
  GivenWeights values;
  for (SafetensorsEntry& entry : read_entries(file, model)) {
    const std::string name = entry.name;
    values.emplace(name, std::move(entry));
  }
  return values;
}

/// Whether values of the type become those of a tensor by rounding alone: 8-bit floats and whole numbers in a file
/// stand for weights that have scales beside them.
bool is_of_kind(at::ScalarType type, const at::Tensor& tensor) {
  if (!tensor.is_floating_point()) return !at::isFloatingType(type);
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16 || type == at::kDouble;
}

/// Leaves out what the model does not keep in files. Throws unless every parameter of the model is there in its shape,
/// and a buffer that is there in its own; not `strict`: missing parameters are a warning.
void check_values(const std::string& file, GivenWeights& values, const Model& model, bool strict) {
  std::string missing, misshapen, mistyped, unexpected;
  std::set<std::string> known;
  const auto compare = [&](const NamedTensor& tensor, bool needed) {
    known.insert(tensor.name);
    const auto found = values.find(tensor.name);
    if (found == values.end()) {
      if (needed) missing += " '" + tensor.name + "'";
    } else if (found->second.values.sizes() != tensor.tensor.sizes()) {
      misshapen += " '" + tensor.name + "' (" + c10::str(found->second.values.sizes()) + " in the file, " +
                   c10::str(tensor.tensor.sizes()) + " in the model)";
    } else if (const at::ScalarType type = found->second.values.scalar_type(); !is_of_kind(type, tensor.tensor)) {
      mistyped += " '" + tensor.name + "' (" + c10::toString(type) + " in the file)";
    }
  };
  for (const NamedTensor& parameter : model.parameters()) compare(parameter, !parameter.added);
  for (const NamedTensor& buffer : model.buffers()) {
    if (buffer.persistent) compare(buffer, /*needed=*/false);
  }
  for (auto value = values.begin(); value != values.end();) {
    const bool used = known.contains(value->first);
    if (!used) unexpected += " '" + value->first + "'";
    value = used ? std::next(value) : values.erase(value);
  }
  if (!strict && !missing.empty()) {
    log::warning(file + ": holds nothing for" + missing + ", which the model keeps as they are.");
    missing.clear();
  }
  if (!missing.empty() || !misshapen.empty() || !mistyped.empty()) {
    throw RuntimeFault(file + ": does not fit model '" + model.description() + "'." +
                       (missing.empty() ? "" : " Missing:" + missing + ".") +
                       (misshapen.empty() ? "" : " Of another shape:" + misshapen + ".") +
                       (mistyped.empty() ? "" : " Of a type that holds no weights by itself:" + mistyped + ".") +
                       (unexpected.empty() ? "" : " In the file only:" + unexpected + "."));
  }
  if (!unexpected.empty())
    log::warning(file + ": holds what this model does not save, which is not used:" + unexpected + ".");
}

}  // namespace

void Keep::take_given(const GivenWeights& values, const char* call) {
  snapshots_.forget();
  half_loaded_ = true;
  as_one(*parts_.communicator, std::string(call) + ", apply", [&] {
    std::optional<MappedWeights> mapped;
    if (weights_stay_in_files() && !parts_.optimizer && parts_.store.sharding() == nullptr) mapped.emplace();
    take_weights(values, parts_.model, parts_.store, mapped ? &*mapped : nullptr);
  });
  parts_.store.set_initial(true);
  parts_.store.refresh_all();
  half_loaded_ = false;
  wants_teacher_ = false;
}

Json Keep::load_weights(const std::string& file, bool strict) {
  const at::NoGradGuard no_grad;
  const bool leads = parts_.communicator->rank() == 0;
  CheckpointContents contents;
  GivenWeights values;
  CarriedFiles files;
  as_one(*parts_.communicator, "load_weights, check", [&] {
    const bool of_run = is_checkpoint(file);
    values = of_run ? checkpoint_weights(file, leads, parts_.model, contents) : read_values(file, parts_.model);
    check_values(file, values, parts_.model, strict);
    if (!leads) return;
    if (of_run) {
      log_notes(contents.state, kWeightNotes, file);
      // A copy, so that the checkpoint's file need not stay mapped.
      for (const auto& [name, bytes] : carried_files_of(contents)) files.emplace(name, bytes.clone());
    } else if (is_pretrained(file)) {
      files = read_carried_files(file);
    }
  });
  take_given(values, "load_weights");
  files_ = std::move(files);
  const Json* client_state = contents.state.find("client_state");
  return client_state ? *client_state : Json::object();
}

}  // namespace capstan
