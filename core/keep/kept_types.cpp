#include "core/keep/kept_types.hpp"

#include <map>
#include <set>
#include <utility>

#include "core/checkpoint/state_text.hpp"
#include "core/keep/checkpoint_lookup.hpp"

namespace capstan {
namespace {

/// The types of a tensor in a checkpoint and in a run.
using Types = std::pair<at::ScalarType, at::ScalarType>;

bool loses_digits(const Types& types) { return c10::elementSize(types.second) < c10::elementSize(types.first); }

std::string name_of(at::ScalarType type) {
  return type == at::kFloat      ? "fp32"
         : type == at::kBFloat16 ? "bf16"
         : type == at::kHalf     ? "fp16"
                                 : c10::toString(type);
}

std::string sentence(const char* what, const Types& types) {
  return std::string("has ") + what + " in " + name_of(types.first) + ", and this run keeps them in " +
         name_of(types.second) + (loses_digits(types) ? ": they were rounded." : ", as exact as they were saved.");
}

}  // namespace

std::vector<std::string> notes_on_types(const CheckpointContents& contents, ParameterStore& store) {
  std::map<std::pair<std::string, std::string>, at::ScalarType> kept;
  for (std::size_t i = 0; i < store.entries().size(); ++i) {
    const std::string& name = store.entries()[i].name;
    kept[{name, kParam}] = store.kept(i, ParameterStore::kMaster).scalar_type();
    int which = -1;
    for (const StateSpec& spec : store.states()) {
      if (spec.extent == StateSpec::Extent::kModel) continue;
      const at::Tensor& values = store.kept(i, ++which);
      if (values.defined() && is_cut(spec)) kept[{name, spec.name}] = values.scalar_type();
    }
  }
  std::set<Types> masters, states;
  for (const CheckpointTensor& tensor : contents.tensors) {
    const auto found = kept.find({tensor.parameter, tensor.state});
    if (found == kept.end() || tensor.values.scalar_type() == found->second) continue;
    (tensor.state == kParam ? masters : states).emplace(tensor.values.scalar_type(), found->second);
  }
  std::vector<std::string> notes;
  for (const Types& types : masters) notes.push_back(sentence("master weights", types));
  for (const Types& types : states) notes.push_back(sentence("states of the optimizer", types));
  return notes;
}

}  // namespace capstan
