#pragma once

#include <map>
#include <string>
#include <string_view>

#include "core/model/model.hpp"

namespace capstan {

/// The name that configurations use for a class of modules: a torch::nn::LinearImpl is a "torch.nn.Linear".
std::string configured_class(std::string_view class_name);

/// Which class of module each parameter of a model belongs to, by the names that configurations use.
class ParameterClasses {
 public:
  explicit ParameterClasses(const Model& model);

  /// "" for a parameter of no module that the model shows.
  std::string of(const std::string& parameter) const;
  /// Whether some module is of that class.
  bool has(const std::string& class_name) const;
  /// All classes, "torch.nn.Embedding, torch.nn.Linear".
  std::string text() const;

 private:
  std::map<std::string, std::string> of_module_;
};

}  // namespace capstan
