#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "sdk/conformance/component_under_test.hpp"

namespace capstan::conformance {

/// One slot: part of a parameter with its gradient and states, each between guards that nobody may write.
class Piece {
 public:
  struct Options {
    std::int64_t offset = 0, full_numel = 0;  // full_numel 0: this is the whole parameter
    c10::ScalarType grad_dtype = c10::ScalarType::Float;
    bool compute_copy = false;  // a bfloat16 copy to write as well
  };

  /// `values`: the master values of this part.
  Piece(const ComponentManifest& manifest, const Json& numbers, std::string name, const std::vector<float>& values,
        const Options& options);
  Piece(const ComponentManifest& manifest, const Json& numbers, std::string name, const std::vector<float>& values)
      : Piece(manifest, numbers, std::move(name), values, Options{}) {}

  void set_grad(const std::vector<float>& values);
  std::vector<float> param() const;
  /// The bytes of parameter and states, for comparisons bit by bit.
  std::string bytes() const;
  bool finite() const;
  bool guards_intact() const;

  std::string name;
  capstan_slot slot{};
  at::Tensor param_tensor, grad_tensor, compute_tensor;
  std::vector<at::Tensor> states;  // undefined where the optimizer has none
  int compute_written = 0;

  /// Copies the tensors of another piece of the same parameter.
  void copy_from(const Piece& other);
  /// Those that a checkpoint holds.
  void copy_saved_from(const Piece& other, const ComponentManifest& manifest);
  /// The slot, pointing to this object's tensors.
  const capstan_slot* raw();

 private:
  at::Tensor guarded(std::int64_t numel, c10::ScalarType dtype, double value, c10::Device place);

  c10::Device device_;
  std::vector<at::Tensor> whole_;  // with their guards
  std::vector<capstan_tensor> state_handles_;
  std::vector<std::int64_t> shape_;
  std::vector<std::int64_t> rows_;  // of the gradient, where the optimizer takes sparse ones: all of them
};

/// An optimizer with one parameter group, driven as the engine drives it.
class OptimizerUnderTest {
 public:
  OptimizerUnderTest(const Context& context, const ComponentManifest& manifest)
      : OptimizerUnderTest(context, manifest, default_params(manifest), nullptr, 1) {}
  /// One rank of `world_size`, with what `lend` gives it.
  OptimizerUnderTest(const Context& context, const ComponentManifest& manifest, const Json& params,
                     const std::function<void(capstan_host&)>& lend, std::uint32_t world_size);

  const ComponentManifest& manifest;
  Json numbers;  // the numbers of the group; "lr" is always there

  /// One update, its slots spread over as many calls as there are lists.
  void update(const std::vector<std::vector<Piece*>>& calls, double grad_scale = 1.0);
  void update(const std::vector<Piece*>& pieces, double grad_scale = 1.0) {
    update(std::vector<std::vector<Piece*>>{pieces}, grad_scale);
  }

  /// Whether the next update gets each rank's own gradients.
  bool wants_local_gradients();
  void synchronize(const std::vector<Piece*>& pieces);
  /// Makes model_states for these parameters, if they are not there.
  void make_model_states(const std::vector<Piece*>& pieces);

  /// What save() wrote; "{}" where there is none.
  std::string save();
  void load(const std::string& saved, std::int64_t updates);

  /// Flat states of the whole model; kept here, sized by the first update.
  std::vector<at::Tensor> model_states;

 private:
  void update(const std::vector<std::vector<Piece*>>& calls, const capstan_step& step);
  std::vector<double> measure_model(const std::vector<std::vector<const capstan_slot*>>& calls,
                                    const capstan_step& step);
  void call_update(const std::vector<const capstan_slot*>& slots, const std::vector<double>& totals,
                   const capstan_step& step);

  /// Runs call(step), with everything that a step points to.
  template <class Call>
  void with_step(double grad_scale, const Call& call);

  ComponentUnderTest component_;
  std::uint32_t world_size_;
  std::int64_t updates_ = 0;
};

std::vector<float> random_values(std::mt19937_64& random, std::size_t count, float scale = 1.0f);

}  // namespace capstan::conformance
