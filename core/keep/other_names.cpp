#include "core/keep/other_names.hpp"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "core/checkpoint/checkpoint_index.hpp"
#include "core/checkpoint/read_values.hpp"
#include "core/errors.hpp"
#include "core/host_tensor.hpp"
#include "core/keep/checkpoint_lookup.hpp"

namespace capstan {
namespace {

std::vector<std::int64_t> turned(const std::vector<std::int64_t>& shape) { return {shape[1], shape[0]}; }

/// A tensor with a value for each element of a matrix that lies the other way round. Counts of steps do not.
bool is_turned(const HfFormat::Tensor& place, const CheckpointTensor& tensor) {
  return place.transposed && tensor.shape.size() == 2;
}

/// The whole of a turned tensor without values, as takes() is asked of it.
CheckpointTensor whole_of(const HfFormat::Tensor& place, const CheckpointTensor& part) {
  const std::vector<std::int64_t> shape = turned(part.shape);
  return {place.parameter, part.state, shape, 0, values_elsewhere({elements_of(shape)}, part.values.scalar_type())};
}

/// The parts of a matrix, put together and turned.
at::Tensor joined_and_turned(const std::vector<CheckpointTensor>& parts) {
  const CheckpointTensor& first = parts.front();
  const at::Tensor whole = host_empty({elements_of(first.shape)}, first.values.scalar_type());
  for (const CheckpointTensor& part : parts) {
    if (part.values.numel() == 0) continue;
    whole.narrow(0, part.offset, part.values.numel()).copy_(part.values.reshape({-1}));
  }
  return whole.view(first.shape).t().contiguous().view({-1});
}

/// How many elements from the first one on are there. Sorts the parts.
std::int64_t first_elements(std::vector<CheckpointTensor>& parts) {
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  std::int64_t elements = 0;
  for (const CheckpointTensor& part : parts) {
    if (part.offset > elements) break;
    elements = std::max(elements, part.offset + part.values.numel());
  }
  return elements;
}

}  // namespace

OtherNames::OtherNames(const Model& model) : tied_(model.tied()) {
  for (const NamedTensor& one : model.parameters()) own_[one.name] = false;
  for (const NamedTensor& one : model.buffers()) own_[one.name] = true;
  const Json description = model.describe();
  const Json* told = description.find("hf");
  if (told == nullptr || told->find("refused") != nullptr) return;
  const HfFormat format = hf_format(description, model.description());
  ignored_ = format.ignored;
  for (const HfFormat::Tensor& place : format.tensors) {
    places_.emplace(place.name, place);
    if (!format.prefix.empty() && place.name.starts_with(format.prefix)) {
      places_.emplace(place.name.substr(format.prefix.size()), place);
    }
    theirs_.emplace(place.parameter, place.name);
  }
}

const HfFormat::Tensor* OtherNames::place_of(const std::string& name) const {
  if (own_.contains(name)) return nullptr;
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &found->second;
}

std::string OtherNames::own_name(const std::string& name) const {
  if (const auto tied = tied_.find(name); tied != tied_.end()) return tied->second;
  const HfFormat::Tensor* place = place_of(name);
  return place != nullptr ? place->parameter : name;
}

std::function<bool(const CheckpointTensor&)> OtherNames::takes(std::function<bool(const CheckpointTensor&)> own) const {
  return [this, own = std::move(own)](const CheckpointTensor& tensor) {
    const HfFormat::Tensor* place = place_of(tensor.parameter);
    if (place != nullptr && is_turned(*place, tensor)) return own(whole_of(*place, tensor));
    const std::string name = own_name(tensor.parameter);
    if (name == tensor.parameter) return own(tensor);
    CheckpointTensor renamed = tensor;
    renamed.parameter = name;
    return own(renamed);
  };
}

TrainedNames OtherNames::theirs(const TrainedNames& own) const {
  TrainedNames names = own;
  for (auto& group : names) {
    for (std::string& name : group) {
      const auto found = theirs_.find(name);
      if (found != theirs_.end()) name = found->second;
    }
  }
  return names;
}

void OtherNames::rename(CheckpointContents& contents, const std::function<bool(const CheckpointTensor&)>& takes) const {
  std::set<std::pair<std::string, std::string>> present;
  for (const CheckpointTensor& tensor : contents.tensors) present.emplace(tensor.parameter, tensor.state);
  std::vector<CheckpointTensor> kept;
  std::map<std::pair<std::string, std::string>, std::vector<CheckpointTensor>> turning;
  for (CheckpointTensor& tensor : contents.tensors) {
    const HfFormat::Tensor* place = place_of(tensor.parameter);
    if (place != nullptr && is_turned(*place, tensor)) {
      turning[{tensor.parameter, tensor.state}].push_back(std::move(tensor));
      continue;
    }
    const std::string name = own_name(tensor.parameter);
    if (tied_.contains(tensor.parameter) && present.contains({name, tensor.state})) continue;
    const bool ignored = std::any_of(ignored_.begin(), ignored_.end(),
                                     [&](const std::string& end) { return tensor.parameter.ends_with(end); });
    if (ignored && !own_.contains(name)) continue;
    tensor.parameter = name;
    const auto own = own_.find(tensor.parameter);
    if (own != own_.end() && own->second && tensor.state == kParam) tensor.state = kBuffer;
    kept.push_back(std::move(tensor));
  }
  for (auto& [key, parts] : turning) {
    CheckpointTensor whole = whole_of(*place_of(key.first), parts.front());
    const std::int64_t elements = first_elements(parts);
    // A part that is missing is named when the tensor is looked for.
    if (elements != whole.values.numel()) {
      whole.values = whole.values.narrow(0, 0, std::min(elements, whole.values.numel()));
    } else if (takes(whole)) {
      whole.values = joined_and_turned(parts);
    }
    parts.clear();
    kept.push_back(std::move(whole));
  }
  contents.tensors = std::move(kept);
}

}  // namespace capstan
