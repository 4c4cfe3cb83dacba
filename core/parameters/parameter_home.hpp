#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/memory/residency.hpp"
#include "core/model/model.hpp"
#include "core/zero/sharding.hpp"

namespace capstan {

/// Where the values are that the model computes with, and which elements this rank updates. The base class is the home
/// of parameters that every rank has whole and updates whole: of a single process, and of ZeRO stage 0.
///
/// Parameters are counted as ParameterStore counts them: the trained ones first, then the frozen ones. [engine]
class ParameterHome {
 public:
  using Pass = ParameterResidency::Pass;
  struct Parameters {
    std::vector<NamedTensor> trained;  // the model's own tensors
    std::vector<at::Tensor> compute;   // aliases of the trained parameters' values, without autograd
    std::vector<NamedTensor> frozen;   // aliases of the frozen parameters' values
    std::vector<bool> stays;           // one a parameter: whole in memory at all times
    std::vector<bool> movable_frozen;  // one a frozen parameter: its memory may be that of its part
    at::ScalarType frozen_dtype = at::kFloat;
    bool frozen_as_int8 = false;
  };

  virtual ~ParameterHome() = default;
  /// Takes the parameters, once Sharding::attach() has them.
  virtual void attach(Parameters parameters) { parameters_ = std::move(parameters); }
  /// Called when every rank has its parts: parameters that may leave memory leave it.
  virtual void begin() {}

  /// Whether each rank updates its part alone: from stage 1 on.
  virtual bool partitioned() const { return false; }
  /// Whether each rank has its part alone between two uses: stage 3.
  virtual bool parts_only() const { return false; }
  /// How many ranks share out the elements of a parameter.
  virtual int ranks() const { return 1; }
  /// The elements of trained parameter i, which has `numel`, that this rank updates.
  virtual Range updated(std::size_t i, std::int64_t numel) const;
  /// The elements of trained parameter i that each rank updates, in rank order; empty: every rank updates all of them.
  virtual std::vector<Range> updated_by_ranks(std::size_t i) const;
  /// Whether parameter i is whole in memory at all times.
  virtual bool stays(std::size_t i) const;
  /// Whether parts are sent, and may be sent as codes: how trained parameter i is sent until the next set_scales().
  virtual bool sends_codes() const { return false; }
  virtual void set_scales(std::size_t i, std::optional<PartScales> scales);

  /// Fetches the parameters that operators use; null while all are here to stay.
  virtual OperatorPolicy* operator_policy() { return nullptr; }
  /// Called around a pass of the model; a pass that trains ends with end_backward().
  virtual void begin_forward(const std::string& step, Pass pass);
  virtual void end_forward(Pass pass);
  virtual void end_backward() {}
  /// Waits until no other thread fetches parameters. Throws RuntimeFault.
  virtual void settle() {}
  /// Gives every rank the values that the others have updated. `step` names the collectives.
  virtual void share(const std::string& step);
  /// Keeps parameters whole in memory, for code that uses no operators. let_go() ends that.
  virtual void hold(const std::vector<std::size_t>& parameters);
  virtual void let_go(const std::vector<std::size_t>& parameters);
  /// Called when the compute copy of trained parameter i got `values`, the whole in one dimension.
  virtual void note_written(std::size_t i, const at::Tensor& values);

  /// The elements of frozen parameter k that this rank has, and their values in one dimension.
  virtual Range frozen_part(std::size_t k) const;
  virtual at::Tensor frozen_values(std::size_t k) const;
  /// Gives frozen parameter k other values: calls `fill(to, offset)` for each run of elements that this rank has.
  virtual void set_frozen(std::size_t k, const std::function<void(at::Tensor to, std::int64_t offset)>& fill);

 protected:
  Parameters parameters_;
};

/// Makes the home for the stage of `sharding`, which must outlive it; null: one process trains whole parameters.
std::unique_ptr<ParameterHome> make_home(Sharding* sharding, const ResidencyLimits& limits);

}  // namespace capstan
