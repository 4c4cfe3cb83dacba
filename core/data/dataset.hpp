#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/model/batch.hpp"
#include "core/registry/registry.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// A component of kind "dataset", opened.
class Dataset {
 public:
  struct Source {
    std::vector<std::string> paths;
    std::int64_t sequence_length = 0;  // tokens a sample, 0: not known
    std::int64_t vocabulary = 0;       // of the model, 0: not known
  };

  /// Throws RuntimeFault with the component's text: what is wrong with the data.
  Dataset(Component component, const Source& source);

  std::int64_t samples() const { return samples_; }
  /// A text that other data does not have.
  const std::string& fingerprint() const { return fingerprint_; }
  /// Positions of a sample; 0 where samples have no length of their own.
  std::int64_t sequence_length() const { return sequence_length_; }
  /// Bytes of text that a token stands for, on average; nothing where the component does not say.
  std::optional<double> bytes_per_token() const { return bytes_per_token_; }
  /// All that the component says of the data: "tokens", for instance.
  const Json& facts() const { return facts_; }

  /// A batch of these samples, row i that of samples[i]. Throws RuntimeFault with the component's text. [any
  /// thread]
  Batch read(std::span<const std::int64_t> samples) const;

 private:
  Component component_;
  std::int64_t samples_ = 0;
  std::string fingerprint_;
  std::int64_t sequence_length_ = 0;
  std::optional<double> bytes_per_token_;
  Json facts_;
};

}  // namespace capstan
