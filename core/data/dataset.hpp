#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/model/batch.hpp"
#include "core/registry/registry.hpp"

namespace capstan {

/// A component of kind "dataset", opened.
class Dataset {
 public:
  struct Source {
    std::vector<std::string> paths;
    std::int64_t sequence_length = 0;  // tokens a sample, 0: not known
    std::int64_t vocabulary = 0;       // of the model, 0: not known
  };

  /// Throws PluginError with the component's text.
  Dataset(Component component, const Source& source);

  std::int64_t samples() const { return samples_; }
  /// A text that other data does not have.
  const std::string& fingerprint() const { return fingerprint_; }
  std::optional<std::int64_t> sequence_length() const { return sequence_length_; }

  /// A batch of these samples, row i that of samples[i]. Throws PluginError with the component's text. [any thread]
  Batch read(std::span<const std::int64_t> samples) const;

 private:
  Component component_;
  std::string where_;  // "dataset 'tokens'"
  std::int64_t samples_ = 0;
  std::string fingerprint_;
  std::optional<std::int64_t> sequence_length_;
};

}  // namespace capstan
