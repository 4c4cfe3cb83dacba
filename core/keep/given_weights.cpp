#include "core/keep/given_weights.hpp"

#include <ATen/core/grad_mode.h>

#include <set>

namespace capstan {
namespace {

/// Elements [from, from + count) of the flattened tensor.
at::Tensor elements(const SafetensorsEntry& entry, std::int64_t from, std::int64_t count) {
  if (entry.read) return entry.read(from, count);
  return entry.values.reshape({-1}).narrow(0, from, count);
}

}  // namespace

void take_weights(const GivenWeights& given, const Model& model, ParameterStore& store) {
  const at::NoGradGuard no_grad;
  std::set<std::string> taken;
  for (const ParameterEntry& entry : store.entries()) taken.insert(entry.name);
  for (std::size_t i = 0; i < store.entries().size(); ++i) {
    const auto found = given.find(store.entries()[i].name);
    if (found == given.end()) continue;
    store.visit_master(i, /*changes=*/true, [&](std::size_t, at::Tensor master, std::int64_t offset) {
      master.copy_(elements(found->second, store.entries()[i].offset + offset, master.numel()));
    });
  }
  for (std::size_t k = 0; k < store.frozen().size(); ++k) {
    taken.insert(store.frozen()[k].name);
    const auto found = given.find(store.frozen()[k].name);
    if (found == given.end()) continue;
    store.set_frozen(k, [&](at::Tensor to, std::int64_t offset) {
      to.copy_(elements(found->second, offset, to.numel()).view(to.sizes()));
    });
  }
  for (const auto* list : {&model.parameters(), &model.buffers()}) {
    for (const NamedTensor& named : *list) {
      const auto found = given.find(named.name);
      if (taken.contains(named.name) || found == given.end()) continue;
      at::Tensor tensor = named.tensor.detach();
      tensor.copy_(elements(found->second, 0, tensor.numel()).view_as(tensor));
    }
  }
}

}  // namespace capstan
