#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/checkpoint.hpp"
#include "core/parameters/parameter_store.hpp"

// How an engine names what it keeps in a checkpoint, and finds it again.

namespace capstan {

/// The states under which a checkpoint holds the values of parameters and buffers.
inline constexpr const char* kParam = "param";
inline constexpr const char* kBuffer = "buffer";

/// The name of what every rank has of its own.
std::string of_rank(const std::string& name, int rank);
/// A state's name without the rank, or the parameter of a compression's state, that stands behind " of ".
std::string without_of(const std::string& state);
/// Whether a name is what of_rank() gives for some other rank.
bool is_of_another_rank(const std::string& name, int rank);
/// The state of a rank's generator on a device: the CPU's has no name of its own.
std::string generator_state(const std::string& device, int rank);

/// Names for a sentence: "'a', 'b', 'c', ... (5 in all)".
std::string quoted_list(const std::vector<std::string>& names);

/// Whether a state is cut as the parameter is: it has a value for each of its elements, or of its blocks.
bool is_cut(const StateSpec& spec);
/// The shape of the whole of a state, of which `values` are an entry's part.
std::vector<std::int64_t> state_shape(const StateSpec& spec, const ParameterEntry& entry, const at::Tensor& values);

/// Finds a checkpoint's tensors by parameter and state, in however many parts, and names what does not fit.
class CheckpointLookup {
 public:
  /// `contents` must outlive this. `where` is the checkpoint's folder, for messages.
  /// Not `strict`: the checkpoint and the model may each lack parameters and buffers of the other.
  CheckpointLookup(const CheckpointContents& contents, std::string where, bool strict = true);

  bool strict() const { return strict_; }

  bool has(const std::string& parameter, const std::string& state) const {
    return tensors_.contains({parameter, state});
  }
  /// Throws RuntimeFault unless it is there, whole and of that shape.
  void require(const std::string& parameter, const std::string& state, at::IntArrayRef shape) const;
  /// The same of an optimizer's state. Whole numbers, which mean what the optimizer makes of them, must be of `dtype`.
  void require(const std::string& parameter, const StateSpec& spec, at::IntArrayRef shape, at::ScalarType dtype) const;
  /// Copies elements [offset, offset + to.numel()) of what require() has found.
  void copy(const std::string& parameter, const std::string& state, at::Tensor to, std::int64_t offset = 0) const;
  /// The parameters or buffers that have this state, in the order of their names.
  std::vector<std::string> with_state(const std::string& state) const;
  /// The names of all states, without the rank or the parameter that stands behind " of ".
  std::set<std::string> state_names() const;
  /// The values of a tensor of no parameter that one rank has written; undefined when there is none.
  at::Tensor find_whole(const std::string& state) const;
  const std::string& where() const { return where_; }

 private:
  std::string where_;
  bool strict_;
  std::map<std::pair<std::string, std::string>, std::vector<const CheckpointTensor*>> tensors_;
};

}  // namespace capstan
