#include "core/checkpoint/torch_dcp/read_torch_dcp.hpp"

#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "core/checkpoint/checkpoint_index.hpp"
#include "core/checkpoint/deepspeed/notes.hpp"
#include "core/checkpoint/torch_dcp/dcp_metadata.hpp"
#include "core/checkpoint/torch_file/json_of.hpp"
#include "core/errors.hpp"
#include "core/host_tensor.hpp"
#include "core/text/table.hpp"
#include "core/text/utf8.hpp"

namespace capstan {
namespace torch_dcp {
namespace {

namespace fs = std::filesystem;

constexpr const char *kMetadata = ".metadata", *kParam = "param", *kStep = "step", *kState = "state",
                     *kGroups = "param_groups", *kModel = "model";
constexpr std::int64_t kFormat = 1;  // of state.json
constexpr std::int64_t kMostSteps = 1'000'000'000'000;
constexpr std::int64_t kMostParts = 10'000'000;

/// {..., "state", parameter, name} of an optimizer.
bool is_state(const Entry& entry) { return entry.path.size() >= 3 && entry.path[entry.path.size() - 3] == kState; }

/// {..., "param_groups", number, name}
bool is_of_group(const Entry& entry) { return entry.path.size() >= 3 && entry.path[entry.path.size() - 3] == kGroups; }

std::string text_of(const Entry& entry) { return joined(entry.path, "."); }

/// The keys that lead to an entry, without its own.
std::string container_of(const Entry& entry) { return joined({entry.path.begin(), entry.path.end() - 1}, "."); }

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

class Reader {
 public:
  Reader(const fs::path& folder, const std::function<bool(const CheckpointTensor&)>& takes)
      : folder_(folder), takes_(takes), metadata_(TorchFile::of_pickle(folder / kMetadata)) {}

  CheckpointContents read() {
    const std::vector<Entry> entries = read_metadata(*metadata_);
    const std::string model = model_container(entries);
    std::set<std::string> left_out;
    for (const Entry& entry : entries) {
      for_each_item(entry, [&](const Item& item) { map(item); });
      if (is_state(entry)) {
        add_state(entry);
      } else if (is_of_group(entry)) {
        add_group_member(entry);
      } else if (!entry.is_tensor) {
        add_client_state(entry);
      } else if (container_of(entry) == model) {
        add_tensor(entry, entry.path.back(), kParam);
      } else {
        left_out.insert(container_of(entry).empty() ? text_of(entry) : container_of(entry));
      }
    }
    for (const std::string& name : left_out) note("the tensors of '" + name + "' are left out.");
    if (unnamed_) {
      note(
          "its optimizer's states have numbers in place of names, and are left out. Save with "
          "torch.distributed.checkpoint.state_dict.get_state_dict(), which names them.");
    }
    add_steps();
    finish_state();
    return std::move(contents_);
  }

  void verify() {
    for (const Entry& entry : read_metadata(*metadata_)) {
      for_each_item(entry, [&](const Item& item) { open(item).verify_all(); });
    }
  }

 private:
  template <typename Function>
  static void for_each_item(const Entry& entry, const Function& function) {
    if (!entry.is_tensor) function(entry.item);
    for (const Chunk& chunk : entry.chunks) function(chunk.item);
  }

  [[noreturn]] void fail(const std::string& defect) const {
    throw RuntimeFault("checkpoint '" + folder_.string() + "': " + defect);
  }

  void note(std::string sentence) { notes_.push_back(std::move(sentence)); }

  /// Which of the state dicts that hold tensors is the model's.
  std::string model_container(const std::vector<Entry>& entries) const {
    std::set<std::string> all;
    for (const Entry& entry : entries) {
      if (entry.is_tensor && !is_state(entry) && !is_of_group(entry)) all.insert(container_of(entry));
    }
    if (all.contains(kModel)) return kModel;
    for (const std::string& one : all) {
      if (one.ends_with(std::string(".") + kModel)) return one;
    }
    if (all.size() == 1) return *all.begin();
    if (all.empty()) fail("it holds no tensors of a model.");
    fail("it has tensors under '" + joined({all.begin(), all.end()}, "', '") +
         "', and does not tell which of them are the model's. Save the model's state dict under the key 'model'.");
  }

  std::string path_of(const Item& item) const { return (folder_ / item.file).string(); }

  /// The file of an item, which lies within. The file stays mapped.
  const std::shared_ptr<const MappedFile>& map(const Item& item) {
    auto& file = files_[item.file];
    const std::string path = path_of(item);
    if (!file) {
      std::error_code error;
      if (!fs::exists(path, error)) throw RuntimeFault("checkpoint file '" + path + "': it is missing.");
      try {
        file = std::make_shared<const MappedFile>(path);
      } catch (const RuntimeFault& fault) {
        throw RuntimeFault(std::string("checkpoint file ") + fault.what());
      }
    }
    if (item.begin > file->size() || item.size > file->size() - item.begin) {
      throw RuntimeFault("checkpoint file '" + path + "', item at byte " + std::to_string(item.begin) + ": bytes " +
                         std::to_string(item.begin) + " to " + std::to_string(item.begin + item.size) +
                         " are beyond its end at byte " + std::to_string(file->size()) + ". It was cut off.");
    }
    return file;
  }

  TorchFile open(const Item& item) {
    return {map(item), item.begin, item.size,
            "checkpoint file '" + path_of(item) + "', item at byte " + std::to_string(item.begin)};
  }

  /// Adds the elements of a chunk: as many parts as they lie apart in the flattened tensor.
  void add_chunk(const Entry& entry, const std::string& parameter, const std::string& state, const Chunk& chunk) {
    const TorchFile file = open(chunk.item);
    const TorchValue root = TorchValue::root_of(file);
    const at::Tensor values = file.tensor(root.id(), "'" + text_of(entry) + "'", /*with_values=*/false);
    if (values.sizes() != at::IntArrayRef(chunk.sizes)) {
      root.fail("'" + text_of(entry) + "' has shape " + c10::str(values.sizes()) + " there, and " +
                c10::str(at::IntArrayRef(chunk.sizes)) + " in .metadata. The files do not belong together.");
    }
    if (!values.is_floating_point() && state != kParam) root.refuse("a tensor of floating-point numbers");
    if (values.numel() == 0) {
      contents_.tensors.push_back({parameter, state, entry.shape, 0, values.reshape({-1})});
      return;
    }
    const std::size_t dimensions = entry.shape.size();
    std::size_t first = dimensions;  // from this dimension on the elements lie in a row
    for (std::size_t i = 0; i < dimensions; ++i) {
      if (chunk.sizes[i] != entry.shape[i]) first = i;
    }
    if (first == dimensions) first = 0;
    std::int64_t runs = 1;
    for (std::size_t i = 0; i < first; ++i) runs *= chunk.sizes[i];
    if ((parts_ += runs) > kMostParts) fail("its tensors are cut into more than 10 million pieces.");
    at::Tensor flat = values.reshape({-1});
    const std::int64_t run = flat.numel() / runs;
    const std::size_t added = contents_.tensors.size();
    std::vector<std::int64_t> at(first, 0);
    bool taken = false;
    for (std::int64_t i = 0; i < runs; ++i) {
      std::int64_t offset = 0;
      for (std::size_t d = 0; d < dimensions; ++d) {
        offset = offset * entry.shape[d] + chunk.offsets[d] + (d < first ? at[d] : 0);
      }
      contents_.tensors.push_back({parameter, state, entry.shape, offset, flat.narrow(0, i * run, run)});
      taken = taken || takes_(contents_.tensors.back());
      for (std::size_t d = first; d-- > 0 && ++at[d] == chunk.sizes[d];) at[d] = 0;
    }
    if (!taken) return;
    // Items do not stand where their elements are aligned, so that values are copies: of what is taken alone.
    const std::string what = "'" + text_of(entry) + "'";
    file.verify(root.id(), what);
    flat = file.tensor(root.id(), what).reshape({-1});
    for (std::int64_t i = 0; i < runs; ++i) {
      contents_.tensors[added + static_cast<std::size_t>(i)].values = flat.narrow(0, i * run, run);
    }
  }

  void add_tensor(const Entry& entry, const std::string& parameter, const std::string& state) {
    if (!known_.insert({parameter, state}).second) fail("'" + text_of(entry) + "' is there twice.");
    const std::int64_t all = elements_of(entry.shape);
    std::int64_t elements = 0;
    for (const Chunk& chunk : entry.chunks) {
      // A chunk has as many as the tensor at most.
      if (elements <= all) elements += elements_of(chunk.sizes);
    }
    if (elements != all) {
      fail("the chunks of '" + text_of(entry) + "' have " + std::to_string(elements) +
           (elements > all ? " elements or more" : " elements") + ", and the tensor " + std::to_string(all) +
           ". A rank's part is missing, or there twice.");
    }
    const std::size_t added = contents_.tensors.size();
    for (const Chunk& chunk : entry.chunks) add_chunk(entry, parameter, state, chunk);
    refuse_overlap(entry, added);
  }

  /// Chunks that have as many elements as the tensor, and do not overlap, are all of it. `added`: where its parts
  /// begin.
  void refuse_overlap(const Entry& entry, std::size_t added) const {
    std::vector<std::pair<std::int64_t, std::int64_t>> ranges;  // the first element, and how many
    for (std::size_t i = added; i < contents_.tensors.size(); ++i) {
      const CheckpointTensor& part = contents_.tensors[i];
      if (part.values.numel() > 0) ranges.emplace_back(part.offset, part.values.numel());
    }
    std::sort(ranges.begin(), ranges.end());
    for (std::size_t i = 1; i < ranges.size(); ++i) {
      if (ranges[i].first >= ranges[i - 1].first + ranges[i - 1].second) continue;
      fail("element " + std::to_string(ranges[i].first) + " of '" + text_of(entry) +
           "' is in two chunks, and others are in none. A rank's part is there twice, and another one is missing.");
    }
  }

  void add_state(const Entry& entry) {
    const std::string &parameter = entry.path[entry.path.size() - 2], &name = entry.path.back();
    if (is_number(parameter)) {
      unnamed_ = true;
    } else if (name == kStep) {
      set_step(entry, parameter);
    } else if (entry.is_tensor) {
      add_tensor(entry, parameter, name == "sum" ? "exp_avg_sq" : name);
      trained_.insert(parameter);
    }
  }

  void set_step(const Entry& entry, const std::string& parameter) {
    if (entry.is_tensor && entry.chunks.size() != 1) fail("'" + text_of(entry) + "' is not a number.");
    const TorchFile file = open(entry.is_tensor ? entry.chunks.front().item : entry.item);
    const TorchValue root = TorchValue::root_of(file);
    const double step = root.number();
    if (step < 0 || step != std::floor(step) || step > static_cast<double>(kMostSteps)) {
      root.fail("'" + text_of(entry) + "' is " + Json(step).dump() + ", and a number of updates is expected.");
    }
    steps_[parameter] = static_cast<std::int64_t>(step);
    trained_.insert(parameter);
  }

  void add_group_member(const Entry& entry) {
    const std::string& number = entry.path[entry.path.size() - 2];
    if (entry.is_tensor || !is_number(number)) return;
    const TorchFile file = open(entry.item);
    std::string defect;
    auto value = json_of(TorchValue::root_of(file), defect, &left_);
    if (value) groups_[std::stoll(number.substr(0, 9))][entry.path.back()] = std::move(*value);
  }

  void add_client_state(const Entry& entry) {
    const TorchFile file = open(entry.item);
    std::string defect;
    auto value = json_of(TorchValue::root_of(file), defect, &left_);
    if (!value || first_invalid_utf8(text_of(entry))) {
      return note("'" + text_of(entry) + "' cannot be read (" + (value ? "its name is not UTF-8" : defect) +
                  ") and is left out.");
    }
    Json* place = &client_state_;
    for (const std::string& key : entry.path) {
      if (!place->is_object()) *place = Json::object();
      place = &(*place)[key];
    }
    *place = std::move(*value);
  }

  /// Capstan's optimizers count steps a parameter.
  void add_steps() {
    for (const std::string& name : trained_) {
      const auto found = steps_.find(name);
      const std::int64_t step = found == steps_.end() ? updates() : found->second;
      contents_.tensors.push_back({name, kStep, {1}, 0, at::full({1}, step, host_options(at::kLong))});
    }
  }

  std::int64_t updates() const {
    std::int64_t most = 0;
    for (const auto& [name, step] : steps_) most = std::max(most, step);
    return most;
  }

  /// Of files called __<rank>_<number>.distcp.
  std::int64_t ranks() const {
    std::set<std::string> ranks;
    for (const auto& [name, file] : files_) ranks.insert(name.substr(0, name.find('_', 2)));
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(ranks.size()));
  }

  static Json group_json(const Json& members) {
    Json group = Json::object();
    const auto number = [&](const char* name) -> const Json* {
      const Json* found = members.find(name);
      return found != nullptr && found->is_number() ? found : nullptr;
    };
    const Json *lr = number("lr"), *initial = number("initial_lr");
    const Json* base = initial != nullptr ? initial : lr;
    group["base_lr"] = base != nullptr ? *base : Json(0.0);
    // Of the next update; a schedule of the configuration sets another one.
    if (lr != nullptr) {
      group["numbers"]["lr"] = Json::array();
      group["numbers"]["lr"].push_back(*lr);
    }
    group["numbers_then"] = Json::object();
    for (const auto& [name, value] : members.as_object()) {
      if (name == "lr" || name == "initial_lr" || name == "params") continue;
      Json list = value.is_number() ? Json::array() : value;
      if (value.is_number()) list.push_back(value);
      const bool numbers =
          list.is_array() && list.size() > 0 &&
          std::all_of(list.as_array().begin(), list.as_array().end(), [](const Json& one) { return one.is_number(); });
      if (numbers) group["numbers_then"][name] = std::move(list);
    }
    return group;
  }

  void finish_state() {
    Json& state = contents_.state;
    state["format"] = kFormat;
    state["written_by"] = "torch.distributed.checkpoint";
    state["global_steps"] = updates();
    state["updates"] = updates();
    state["skipped_steps"] = 0;
    state["world_size"] = ranks();
    state["config"] = Json::object();
    state["groups"] = Json::array();
    for (const auto& [number, members] : groups_) state["groups"].push_back(group_json(members));
    state["observers"] = Json::object();
    state["client_state"] = client_state_;
    if (trained_.empty()) note("it has no states of an optimizer that can be used, which begins anew.");
    note("it has no count of samples: the data goes on where the configuration's batches would have come to.");
    note(
        "torch.distributed.checkpoint saves no states of random number generators: dropout draws other numbers than it "
        "would have.");
    state[kNotes] = Json(Json::Array(notes_.begin(), notes_.end()));
    state[kWeightNotes] = Json::array();
  }

  fs::path folder_;
  const std::function<bool(const CheckpointTensor&)>& takes_;
  std::unique_ptr<TorchFile> metadata_;
  CheckpointContents contents_;
  std::map<std::string, std::shared_ptr<const MappedFile>> files_;
  std::set<std::pair<std::string, std::string>> known_;  // parameter and state
  std::set<std::string> trained_;                        // parameters
  std::map<std::string, std::int64_t> steps_;            // by parameter
  std::map<std::int64_t, Json> groups_;
  Json client_state_ = Json::object();
  std::vector<std::string> notes_;
  std::int64_t parts_ = 0;
  std::int64_t left_ = 8'000'000;  // values that may still become JSON
  bool unnamed_ = false;
};

}  // namespace
}  // namespace torch_dcp

bool is_torch_dcp_folder(const std::filesystem::path& folder) {
  std::error_code error;
  return std::filesystem::is_regular_file(folder / torch_dcp::kMetadata, error);
}

CheckpointContents read_torch_dcp(const std::filesystem::path& folder,
                                  const std::function<bool(const CheckpointTensor&)>& takes) {
  return torch_dcp::Reader(folder, takes).read();
}

void verify_torch_dcp(const std::filesystem::path& folder) {
  const std::function<bool(const CheckpointTensor&)> none = [](const CheckpointTensor&) { return false; };
  torch_dcp::Reader(folder, none).verify();
}

}  // namespace capstan
