#include "core/keep/given_weights.hpp"

#include <ATen/core/grad_mode.h>

#include <filesystem>
#include <set>

#include "core/checkpoint/carried_files.hpp"
#include "core/checkpoint/export.hpp"
#include "core/keep/checkpoint_lookup.hpp"
#include "core/keep/other_names.hpp"

namespace capstan {
namespace {

/// Elements [from, from + count) of the flattened tensor.
at::Tensor elements(const SafetensorsEntry& entry, std::int64_t from, std::int64_t count) {
  if (entry.read) return entry.read(from, count);
  return entry.values.reshape({-1}).narrow(0, from, count);
}

}  // namespace

GivenWeights checkpoint_weights(const std::string& path, bool takes_files, const Model& model,
                                CheckpointContents& contents) {
  const CheckpointName name = CheckpointName::parse(path);
  const std::string tag = tag_of(name);
  const auto is_taken = [&](const CheckpointTensor& one) {
    return one.state == kParam || one.state == kBuffer || (takes_files && one.state == kFileState);
  };
  const OtherNames names(model);
  contents = read_checkpoint(name.dir, tag, names.takes(is_taken));
  names.rename(contents, is_taken);
  GivenWeights values;
  for (SafetensorsEntry& entry : exported_weights(contents, (std::filesystem::path(name.dir) / tag).string())) {
    values.emplace(entry.name, std::move(entry));
  }
  return values;
}

void take_weights(const GivenWeights& given, const Model& model, ParameterStore& store, MappedWeights* mapped) {
  const at::NoGradGuard no_grad;
  std::set<std::string> taken;
  for (const ParameterEntry& entry : store.entries()) taken.insert(entry.name);
  for (std::size_t i = 0; i < store.entries().size(); ++i) {
    const auto found = given.find(store.entries()[i].name);
    if (found == given.end()) continue;
    if (mapped && mapped->take(store.entries()[i], found->second)) continue;
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
