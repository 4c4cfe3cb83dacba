#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "core/checkpoint/safetensors.hpp"
#include "core/parameters/parameter_store.hpp"

namespace capstan {

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
