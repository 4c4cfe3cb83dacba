#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/compression/compression_plan.hpp"
#include "sdk/conformance/component_under_test.hpp"

namespace capstan::conformance {

/// The model that plans are made for, as the engine tells of one: embedding, linear layers, a convolution, parameters
/// of more than 32,768 elements and of fewer, and one that is not trained.
Json compressed_model();

/// A parameter of that model that a plan names.
struct Planned {
  std::string name;
  std::vector<std::int64_t> shape;
  CompressionPlan::Parameter plan;
  std::int64_t numel() const { return plan.layout.numel; }
  Range whole() const { return {0, numel()}; }
};

/// What encode() gives of a piece.
struct PieceCodes {
  at::Tensor codes, scales, zero_points;
};

/// A component of kind compression, planned for compressed_model().
class CompressionUnderTest {
 public:
  /// Throws Broken for a plan that the engine would not take. `change` may lend it another host than that of one rank.
  CompressionUnderTest(const Context& context, const ComponentManifest& manifest,
                       const std::function<void(capstan_host&)>& change = nullptr);

  /// The answer to a question about another model, by an instance that was asked nothing yet.
  static std::string plan_of(const Context& context, const ComponentManifest& manifest, const Json& model);

  const CompressionPlan& plan() const { return plan_; }
  /// Throw Skip where there are none.
  std::vector<Planned> parameters() const;
  std::vector<Planned> parameters_with_codes() const;
  std::vector<std::string> operands() const;
  /// Those that gradient() is called for. Throws Skip where there are none.
  std::vector<Planned> parameters_with_gradients() const;

  /// What prepare() makes of those masters and of the trained states, from states of 0: the states of all parameters.
  std::map<std::string, std::vector<at::Tensor>> prepare(const std::map<std::string, at::Tensor>& masters);
  /// What gradient() makes of one parameter's gradient, and of those of its trained states.
  std::vector<at::Tensor> gradient(const Planned& planned, const at::Tensor& whole, const at::Tensor& gradient) const;

  bool has_active() const;
  bool active(std::int64_t updates) const;
  /// A number of updates after which it acts. Throws Skip where there is none up to 2^40.
  std::int64_t first_active() const;

  /// The numbers of a round, segment by segment. `statistics`: of all groups of the parameter, as far as they are
  /// known.
  std::vector<double> measure(const Planned& planned, const at::Tensor& whole, const Range& range, std::size_t round,
                              const std::vector<double>& statistics) const;
  /// The statistics of all groups, measured piece by piece, joined in the order of segments.
  std::vector<double> statistics(const Planned& planned, const at::Tensor& whole,
                                 const std::vector<Range>& pieces) const;
  /// What becomes of a range of the parameter; `in_place`: in the memory of a copy of its input.
  at::Tensor transform(const Planned& planned, const at::Tensor& whole, const Range& range,
                       const std::vector<double>& statistics, bool in_place = false) const;
  PieceCodes encode(const Planned& planned, const at::Tensor& whole, const Range& range,
                    const std::vector<double>& statistics) const;
  /// The whole parameter, measured and transformed in one piece.
  at::Tensor transform(const Planned& planned, const at::Tensor& whole) const;

  /// What an operator gets in place of `input`.
  at::Tensor operand(const std::string& module, const at::Tensor& input, bool training) const;
  void settle(std::int64_t updates) const;
  bool has_state() const;
  std::string save() const;
  void load(const std::string& state) const;

 private:
  /// States as a piece shows them: `handles` are those of `tensors`.
  struct Shown {
    std::vector<at::Tensor> tensors;
    std::vector<capstan_tensor> handles;
  };
  capstan_compressed piece_of(const Planned& planned, const at::Tensor& input, const Range& range,
                              const std::vector<double>& statistics, Shown& shown) const;
  void make_states();
  void check_functions() const;
  void must_call(const std::string& function, const std::string& what,
                 const std::function<capstan_status(void*, capstan_error*)>& call) const;

  ComponentUnderTest component_;
  const capstan_compression* table_;
  CompressionPlan plan_;
  std::map<std::string, std::vector<at::Tensor>> states_;  // of all parameters of the plan, in the plan's order
};

/// Values as weights have them.
at::Tensor random_weights(std::mt19937_64& random, std::int64_t count, float deviation = 0.05f);
/// All of a parameter, cut at multiples of 32,768 elements.
std::vector<Range> pieces_of(const Planned& planned, std::mt19937_64& random);
/// An input of the operator that uses the weight of a module of compressed_model().
at::Tensor operand_input(const std::string& module, std::mt19937_64& random, at::ScalarType dtype,
                         float deviation = 1.0f);
/// Whether both have the same elements. The sign of a zero says nothing, and what is no number equals itself.
bool same_values(const at::Tensor& one, const at::Tensor& other);

}  // namespace capstan::conformance
