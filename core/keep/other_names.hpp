#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/hf_folder.hpp"
#include "core/model/model.hpp"

namespace capstan {

/// A checkpoint whose tensors another program has named: as transformers calls them, where the model knows these names,
/// and buffers that are not told apart from parameters. A name of the model's own stays as it is. [immutable]
class OtherNames {
 public:
  explicit OtherNames(const Model& model);

  /// Which tensors of the checkpoint are read, for `takes` of the model's own names.
  std::function<bool(const CheckpointTensor&)> takes(std::function<bool(const CheckpointTensor&)> own) const;
  /// The parameters of a run by the names that the checkpoint may have.
  TrainedNames theirs(const TrainedNames& own) const;
  /// Gives all tensors the model's own names, and the form that they have here: a matrix that lies the other way round
  /// there is put together and turned. `takes`: of the model's own names. Of a tied parameter one name stays.
  void rename(CheckpointContents& contents, const std::function<bool(const CheckpointTensor&)>& takes) const;

 private:
  /// The model's name of a parameter, the first one of a tied one.
  std::string own_name(const std::string& name) const;
  /// Null: the name stays.
  const HfFormat::Tensor* place_of(const std::string& name) const;

  std::map<std::string, bool> own_;                 // names of the model; whether it is a buffer
  std::map<std::string, std::string> tied_;         // further names of parameters
  std::map<std::string, HfFormat::Tensor> places_;  // by the name there, with and without the prefix
  std::vector<std::string> ignored_;                // ends of names there that hold nothing to be read
  std::map<std::string, std::string> theirs_;       // by the model's own name
};

}  // namespace capstan
