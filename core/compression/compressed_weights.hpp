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
    SafetensorsEntry values;                           // the same in the dtype that is asked for
    const CompressionPlan::Parameter* plan = nullptr;  // null: it goes as it is
    RowGroups groups;                                  // of one that has a plan

    const std::string& name() const { return saved.name; }
    std::vector<std::int64_t> shape() const { return saved.values.sizes().vec(); }
  };

  /// `contents`, of the checkpoint `where`, and `compressions`, whose plans are made, must outlive it. `dtype`: of what
  /// has no codes. Throws RuntimeFault for a weight that is compressed without codes, or into groups that no format
  /// holds.
  CompressedWeights(const CheckpointContents& contents, const std::string& where, const Compressions& compressions,
                    std::int64_t updates, std::optional<at::ScalarType> dtype);

  const std::vector<Weight>& all() const { return weights_; }
  /// How many have codes.
  std::size_t coded() const;
  /// Null: there is none of that name.
  const Weight* find(const std::string& name) const;
  /// The codes of one that has a plan; those of the last one stay until another is asked for.
  const CodedRows& codes(const Weight& weight);

 private:
  const Compressions& compressions_;
  std::int64_t updates_;
  std::vector<Weight> weights_;
  std::string last_;
  CodedRows last_codes_;
};

/// How another program calls a weight, or some rows of it.
struct NamedRows {
  std::string parameter, name;
  std::int64_t first = 0, count = -1;  // -1: all rows
  std::int64_t zero_rows = 0;          // rows of zeros that stand in front of them there
  bool as_values = false;              // the program takes no codes of it
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
