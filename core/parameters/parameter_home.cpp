#include "core/parameters/parameter_home.hpp"

#include "core/parameters/flat_home.hpp"
#include "core/parameters/partitioned_home.hpp"

namespace capstan {

Range ParameterHome::updated(std::size_t, std::int64_t numel) const { return {0, numel}; }
std::vector<Range> ParameterHome::updated_by_ranks(std::size_t) const { return {}; }
bool ParameterHome::stays(std::size_t) const { return true; }
void ParameterHome::set_scales(std::size_t, std::optional<PartScales>) {}
void ParameterHome::begin_forward(const std::string&, Pass) {}
void ParameterHome::end_forward(Pass) {}
void ParameterHome::share(const std::string&) {}
void ParameterHome::hold(const std::vector<std::size_t>&) {}
void ParameterHome::let_go(const std::vector<std::size_t>&) {}
void ParameterHome::note_written(std::size_t, const at::Tensor&) {}

Range ParameterHome::frozen_part(std::size_t k) const { return {0, parameters_.frozen[k].tensor.numel()}; }
at::Tensor ParameterHome::frozen_values(std::size_t k) const { return parameters_.frozen[k].tensor.reshape({-1}); }
void ParameterHome::set_frozen(std::size_t k, const std::function<void(at::Tensor to, std::int64_t offset)>& fill) {
  fill(parameters_.frozen[k].tensor, 0);
}

std::unique_ptr<ParameterHome> make_home(Sharding* sharding, const ResidencyLimits& limits) {
  if (sharding == nullptr || !sharding->partitioned()) return std::make_unique<ParameterHome>();
  if (sharding->parts_only()) return std::make_unique<PartitionedHome>(*sharding, limits);
  return std::make_unique<FlatHome>(*sharding);
}

}  // namespace capstan
