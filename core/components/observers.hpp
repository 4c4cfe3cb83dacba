#pragma once

#include <memory>
#include <string>
#include <vector>

#include "capstan/plugin.h"
#include "core/components/layer_chain.hpp"
#include "core/model/batch.hpp"
#include "core/registry/registry.hpp"

namespace capstan {

/// The attached components: the engine calls them at three places and knows none of them by name. [engine]
class Observers {
 public:
  void add(Component component);

  bool empty() const { return observers_.empty(); }
  void emit(const capstan_event& event);
  void change_batch(Batch& batch);

  /// Those that wrap layers.
  LayerChain& layers() { return layers_; }

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
    std::string where;  // "observer 'Freeze'"
    std::string key;    // of its state in checkpoints
    const capstan_observer* vtable() const { return component.vtable<capstan_observer>(); }
    void* self() const { return component.self(); }
  };

  std::vector<std::unique_ptr<Attached>> observers_;
  std::vector<const Attached*> events_, batches_;
  LayerChain layers_;
};

}  // namespace capstan
