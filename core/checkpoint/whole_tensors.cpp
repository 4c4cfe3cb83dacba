#include "core/checkpoint/whole_tensors.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace capstan {

std::int64_t WholeTensor::elements() const {
  std::int64_t count = 0;
  for (const CheckpointTensor* part : parts) count += part->values.numel();
  return count;
}

std::vector<WholeTensor> whole_tensors(const CheckpointContents& contents) {
  std::vector<WholeTensor> all;
  std::map<std::pair<std::string, std::string>, std::size_t> places;
  for (const CheckpointTensor& part : contents.tensors) {
    const auto [place, added] = places.emplace(std::pair(part.parameter, part.state), all.size());
    if (added) all.emplace_back();
    all[place->second].parts.push_back(&part);
  }
  for (WholeTensor& tensor : all) {
    std::sort(tensor.parts.begin(), tensor.parts.end(),
              [](const auto* a, const auto* b) { return a->offset < b->offset; });
  }
  return all;
}

at::Tensor ElementReader::next(std::int64_t count) {
  while (part_ < tensor_.parts.size() && at_ == tensor_.parts[part_]->values.numel()) ++part_, at_ = 0;
  if (part_ == tensor_.parts.size()) return {};
  const at::Tensor& values = tensor_.parts[part_]->values;
  const std::int64_t taken = std::min(count, values.numel() - at_);
  at::Tensor block = values.reshape({-1}).narrow(0, at_, taken);
  at_ += taken;
  return block;
}

}  // namespace capstan
