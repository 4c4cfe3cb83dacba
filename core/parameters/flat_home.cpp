#include "core/parameters/flat_home.hpp"

namespace capstan {

OperatorPolicy* FlatHome::operator_policy() {
  ArrivingParameters* arriving = sharding_.arriving();
  return arriving != nullptr && arriving->under_way() ? arriving : nullptr;
}

void FlatHome::settle() {
  if (ArrivingParameters* arriving = sharding_.arriving()) arriving->settle();
}

void FlatHome::share(const std::string& step) {
  FlatParameters& flat = sharding_.parameters();
  ArrivingParameters* arriving = sharding_.arriving();
  if (arriving != nullptr) {
    arriving->start(step);
  } else {
    flat.gather(sharding_.communicator(), step);
  }
  for (std::size_t i = 0; i < parameters_.compute.size(); ++i) {
    const at::Tensor& compute = parameters_.compute[i];
    if (flat.moved(i) || compute.numel() == 0) continue;
    if (arriving != nullptr) arriving->wait_for(i);
    compute.copy_(flat.values(i).view(compute.sizes()));
  }
}

void FlatHome::note_written(std::size_t i, const at::Tensor& values) { sharding_.parameters().values(i).copy_(values); }

}  // namespace capstan
