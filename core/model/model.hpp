#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "capstan/plugin.h"
#include "core/model/batch.hpp"
#include "core/registry/registry.hpp"
#include "core/text/json.hpp"

namespace capstan {

class DeferredValues;

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  capstan_param_role role = CAPSTAN_PARAM_OTHER;  // of a parameter: what it is to its model
  bool added = false;                             // a compression's trained state, which the model does not know
  bool persistent = true;                         // false: a buffer that checkpoints and exports leave out
  bool left_out = false;                          // not the optimizer's, though it may require gradients

  /// Whether the engine updates this parameter. Others are kept and saved as frozen ones.
  bool trained() const { return tensor.requires_grad() && !left_out; }
};

struct ModuleRecord {
  std::string path, class_name;
};

/// By what a model continues sequences; see Decoding.
struct DecodeFunctions {
  const capstan_model* vtable;
  void* self;
  const Component* component;  // null: of a program's own object
  std::string description;
};

/// A model behind the plugin boundary: from a plugin, or a program's own nn::Module wrapped by capstan/model.hpp.
class Model {
 public:
  /// From a plugin of kind "model".
  explicit Model(Component component);
  /// From a vtable; `self` is destroyed with `destroy`.
  Model(const capstan_model* vtable, void* self, void (*destroy)(void*), std::string description);
  ~Model();
  Model(Model&&) noexcept;

  /// Lets the model look at a micro-batch whose tensors are still in host memory. Throws PluginError with the model's
  /// own text for one that forward cannot use.
  void check(Batch& batch) const;
  /// Scalar loss of one micro-batch. Throws PluginError with the model's own text.
  at::Tensor forward(Batch& batch);
  /// Named tensors that the model computes of one micro-batch beside its loss. Throws RuntimeFault for a model without
  /// outputs, and PluginError with the model's own text, or for one that gives a name twice.
  std::map<std::string, at::Tensor> outputs(Batch& batch);
  /// For Decoding. Valid while the model lives, wherever it is moved. Throws ConfigError for a model that does not
  /// continue sequences.
  DecodeFunctions decode_functions() const;
  void set_training(bool on);
  /// The model's order. The tensors are the model's own (same TensorImpl), so writing them writes the model.
  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  /// A parameter that is trained and saved with the model, and that its forward does not use.
  void add_parameter(NamedTensor parameter) { parameters_.push_back(std::move(parameter)); }
  /// Parameters of these names are not trained, whether they require gradients or not. Before an engine takes the
  /// model.
  void leave_out(const std::vector<std::string>& names);
  const std::vector<NamedTensor>& buffers() const { return buffers_; }
  /// Further names of tensors that the model has under several, as its facts say under "tied": "head.weight" ->
  /// "embed.weight", the name that the tensor is shown under.
  const std::map<std::string, std::string>& tied() const { return tied_; }
  const std::vector<ModuleRecord>& modules() const { return modules_; }
  /// Facts as JSON: sequence_length, hidden_size, ...; empty object when the model tells none.
  Json describe() const;
  const std::string& description() const { return description_; }  // "gpt", for messages

  /// Values of its tensors that are still to be made; null: none.
  const std::shared_ptr<DeferredValues>& deferred() const { return deferred_; }
  void set_deferred(std::shared_ptr<DeferredValues> values) { deferred_ = std::move(values); }

 private:
  void collect();
  PluginFunction function(const char* name) const;
  struct Owner;
  std::unique_ptr<Owner> owner_;
  const capstan_model* vtable_;
  void* self_;
  std::string description_;
  std::vector<NamedTensor> parameters_, buffers_;
  std::map<std::string, std::string> tied_;
  std::vector<ModuleRecord> modules_;
  std::shared_ptr<DeferredValues> deferred_;
};

}  // namespace capstan
