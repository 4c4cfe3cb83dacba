#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint/export.hpp"
#include "core/compression/coded_rows.hpp"
#include "core/compression/compressions.hpp"

namespace capstan {

/// The weights of a checkpoint, each as it was saved or as the codes that its compressions make of it; one at a time is
/// in memory. [one thread]
class CompressedWeights {
 public:
  struct Weight {
    SafetensorsEntry saved;                            // its master
    SafetensorsEntry values;                           // what is left of it, in the dtype that is asked for
    const CompressionPlan::Parameter* plan = nullptr;  // of its codes; null: it goes as values
    RowGroups groups;                                  // of the codes that are left
    std::vector<std::vector<std::int64_t>> kept;       // the indices left on each axis; empty: all of them
    bool masked = false;                               // compressions without codes change its values

    const std::string& name() const { return saved.name; }
    std::vector<std::int64_t> shape() const { return values.values.sizes().vec(); }
    std::int64_t numel() const { return values.values.numel(); }
    bool is_pruned() const { return masked || numel() < saved.values.numel(); }
  };

  /// `contents`, of the checkpoint `where`, and `compressions`, whose plans are made, must outlive it. `dtype`: of what
  /// has no codes. Throws RuntimeFault for a weight that is rounded without codes, or into groups that no format
  /// holds.
  CompressedWeights(const CheckpointContents& contents, const std::string& where, const Compressions& compressions,
                    std::int64_t updates, std::optional<at::ScalarType> dtype);
  CompressedWeights(const CompressedWeights&) = delete;

  const std::vector<Weight>& all() const { return weights_; }
  /// What is removed, an entry an axis of a tensor.
  const std::vector<KeptAxis>& removed() const { return removed_; }
  /// How many have codes, and how many are masked or smaller.
  std::size_t coded() const;
  std::size_t pruned() const;
  /// Null: there is none of that name.
  const Weight* find(const std::string& name) const;
  /// The codes of one that has a plan; those of the last one stay until another is asked for.
  const CodedRows& codes(const Weight& weight);

 private:
  void remove(Weight& weight);
  void choose_codes(Weight& weight, const CompressionPlan::Parameter& plan);
  at::Tensor master(const Weight& weight) const;
  at::Tensor read_state(const std::string& parameter, const std::string& state) const;
  const at::Tensor& cleaned(std::size_t index);

  const CheckpointContents& contents_;
  std::string where_;
  const Compressions& compressions_;
  std::int64_t updates_;
  std::vector<KeptAxis> removed_;
  std::vector<Weight> weights_;
  std::string last_, last_cleaned_;
  CodedRows last_codes_;
  at::Tensor cleaned_values_;
};

/// How another program calls a weight, or some rows of it.
struct NamedRows {
  std::string parameter, name;
  std::int64_t first = 0, count = -1;  // -1: all rows
  std::int64_t zero_rows = 0;          // rows of zeros that stand in front of them there
  bool as_values = false;              // the program takes no codes of it
  std::int64_t rotary_heads = 0;       // as in GgufPlace
  bool plus_one = false;               // as in GgufPlace
};

/// How another program's files call all weights of a model, which says so itself.
struct NamesElsewhere {
  std::string model;  // its name here, for messages
  Json facts;         // what such a file says of the model: "config" of transformers, "metadata" of GGUF
  std::vector<NamedRows> tensors;
};

/// Reads member `key` of a model's description, whose facts stand in its member `facts`. Throws PluginError for one
/// that tells none, or tells it wrong.
NamesElsewhere names_elsewhere(const Json& description, const std::string& key, const std::string& facts,
                               const std::string& model);

}  // namespace capstan
