#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "core/checkpoint/safetensors.hpp"
#include "core/parameters/parameter_store.hpp"

namespace capstan {

/// Lets engines of this process that update nothing leave weights in the file they are loaded from. Not for programs
/// that hold views of their model's memory, which goes. [any thread, before the weights are loaded]
void leave_weights_in_files();
/// Whether leave_weights_in_files() was called.
bool weights_stay_in_files();

/// Lets parameters of an engine that updates none use the pages of the files that hold their values, in place of memory
/// of their own. A page that is written becomes a copy, so that nothing reaches the file.
class MappedWeights {
 public:
  /// Takes the files that are mapped now.
  MappedWeights();

  /// False, and nothing is done, where the values have another type or order than the parameter, or no pages of a file
  /// that are not another parameter's already.
  bool take(const ParameterEntry& entry, const SafetensorsEntry& given);
  /// Gives back to the system what the parameters had.
  ~MappedWeights();

 private:
  bool is_mapped(const at::Tensor& values) const;

  std::map<std::uintptr_t, std::uintptr_t> files_;  // read-only pages of files: where a run of them begins, and ends
  std::set<const void*> taken_;
};

}  // namespace capstan
