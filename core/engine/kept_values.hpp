#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/engine/engine.hpp"

namespace capstan {

struct Piece;
struct StateSpec;

/// What an engine keeps of a trained parameter beside the values that the model computes with: its fp32 master, its
/// gradient between the last backward of a step and step(), and its optimizer's states. All ranks call each function
/// that returns a whole tensor, with the same arguments, between two passes of the model. Tensors are float32 copies.
/// [engine]
class KeptValues {
 public:
  /// What of a parameter: "master", "gradient", or an optimizer's state such as "exp_avg".
  struct What {
    std::string parameter, name;
    bool is_gradient() const { return name == kGradient; }
    bool is_master() const { return name == kMaster; }
  };
  static constexpr const char *kMaster = "master", *kGradient = "gradient";

  /// `engine` must outlive this.
  explicit KeptValues(Engine& engine);

  /// Whether the engine trains a parameter of that name.
  bool trains(const std::string& parameter) const;
  /// Names of the optimizer's states of a parameter that have a value for each element, wherever it lies, and are
  /// saved: the same on every rank.
  std::vector<std::string> states(const std::string& parameter) const;
  /// The whole, in the parameter's shape; a state that has no value for each element in its own. A gradient is the mean
  /// over ranks and micro-batches, without the loss scale; undefined where no rank has one. Throws RuntimeFault for a
  /// state that the optimizer lacks, naming those that it has, and for a gradient in the middle of a step.
  at::Tensor whole(const What& what) const;
  /// The part that this rank updates, one dimension: all of it where the optimizer's states are not partitioned. Ranks
  /// need not call it together.
  at::Tensor part(const What& what) const;
  /// Gives it other values, whole and the same on all ranks. Those of a master reach the model's values as well.
  void set_whole(const What& what, const at::Tensor& values) const;
  /// Gives this rank's part of a gradient or of a state other values.
  void set_part(const What& what, const at::Tensor& values) const;
  /// The whole of which each rank gives its part.
  at::Tensor joined(const std::string& parameter, const at::Tensor& part) const;

 private:
  std::size_t index_of(const std::string& parameter) const;
  at::Tensor gradient_of(std::size_t index) const;
  const StateSpec* state_of(const What& what) const;
  at::Tensor from_updater(std::size_t index, const at::Tensor& values) const;
  bool gradient_is_there(std::size_t index) const;
  void refuse_within_step(const What& what) const;
  /// Calls `use` for each state that this rank keeps of a parameter, with the place of its piece.
  void visit_states(std::size_t index, bool changes,
                    const std::function<void(const StateSpec&, const at::Tensor&, const Piece&)>& use) const;
  /// Calls `use` for each run of elements that this rank keeps of a master or a state, with its place in the part.
  void visit(const What& what, bool changes, const std::function<void(at::Tensor, std::int64_t)>& use) const;

  Engine& engine_;
  Engine::State& state_;
};

}  // namespace capstan
