#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "capstan/plugin.h"
#include "core/engine/layer_chain.hpp"
#include "core/memory/interceptor.hpp"
#include "core/model/batch.hpp"
#include "core/model/model.hpp"
#include "core/parameters/parameter_store.hpp"
#include "core/registry/registry.hpp"

namespace capstan {

/// The attached components: the engine calls them at five places and knows none of them by name. [engine]
class Observers {
 public:
  void add(Component component);

  bool empty() const { return observers_.empty(); }
  void emit(const capstan_event& event);
  void change_batch(Batch& batch);

  /// The first observer that wants this weight, or -1.
  int select_transform(const NamedTensor& parameter) const;
  /// "observer 'FakeQuant'", of what select_transform() gave.
  const std::string& name_of(int transform) const { return weights_[static_cast<std::size_t>(transform)]->where; }
  void transform(const ParameterEntry& entry, std::int64_t update_index) const;

  /// Those that wrap layers.
  LayerChain& layers() { return layers_; }

  bool rewrites_operands() const { return !operands_.empty(); }
  /// Offers every operand that is a parameter, or a view of one, to the observers that rewrite operands.
  std::unique_ptr<OperatorPolicy> operand_policy(const std::vector<NamedTensor>& parameters) const;

  /// The states of the observers that keep one, as texts by state_key().
  Json save() const;
  /// Observers whose state is not among them stay as they are.
  void load(const Json& states);
  /// The names of the states that save() gives and load() takes.
  std::vector<std::string> state_keys() const;

 private:
  struct Attached {
    explicit Attached(Component c) : component(std::move(c)) {}
    Component component;
    std::string where;  // "observer 'FakeQuant'"
    std::string key;    // of its state in checkpoints
    const capstan_observer* vtable() const { return component.vtable<capstan_observer>(); }
    void* self() const { return component.self(); }
  };
  class OperandPolicy;

  std::vector<std::unique_ptr<Attached>> observers_;
  std::vector<const Attached*> events_, weights_, operands_, batches_;
  LayerChain layers_;
};

}  // namespace capstan
