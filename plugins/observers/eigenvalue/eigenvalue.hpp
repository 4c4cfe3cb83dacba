#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "capstan/sdk/observer.hpp"
#include "power_iteration.hpp"

namespace capstan::eigenvalue {

/// The trained parameters of a block.
struct Block {
  std::vector<std::string> names;
  std::vector<std::vector<std::int64_t>> shapes;
  at::Device device = at::kCPU;
};
/// The vector that the iteration of a block begins with in a step, on the CPU.
using Start = std::function<Vector(const Block& block, std::size_t index, std::int64_t step)>;

/// Normal numbers, functions of the seed, the step and the parameter's name alone.
Start drawn(std::uint64_t seed);

/// What became of a step's evaluation.
struct Evaluation {
  std::vector<Found> blocks;
  std::vector<double> relative;  // |eigenvalue| over the largest
};

/// The section quantize_training.eigenvalue: the largest eigenvalue of the Hessian of each block's parameters, every
/// gas_boundary_resolution steps, as long as weights have bits to lose. Other components hear of it: "eigenvalue of
/// <parameter>" is its magnitude over that of the block where it is largest (Shen et al.: Q-BERT, AAAI 2020).
class Eigenvalue {
 public:
  Eigenvalue(sdk::Host host, const sdk::Params& params, Start start);
  virtual ~Eigenvalue() = default;

  void event(const capstan_event& event, const sdk::Parameters& parameters);
  void save(const sdk::Sink& sink) const;
  void load(const sdk::Document& saved);

 protected:
  /// Whether it is time, in a step that comes to its update.
  virtual bool is_due(const capstan_event& event) const;
  virtual void found(const capstan_event& event, const Evaluation& evaluation);
  sdk::Host host_;

 private:
  void find_blocks(const sdk::Parameters& parameters);
  void evaluate(const capstan_event& event);
  void tell() const;

  Iteration iteration_;
  std::int64_t resolution_, layer_num_;
  std::string layer_name_;
  bool verbose_;
  Start start_;
  std::vector<Block> blocks_;
  std::vector<double> relative_;  // of the last evaluation
};

}  // namespace capstan::eigenvalue
