// Tensors that a forward may change, in checkpoints and snapshots. Running statistics of batch norm follow the samples
// of each rank: a checkpoint holds them for every rank.

#include <algorithm>

#include "core/keep/keep.hpp"
#include "core/log.hpp"
#include "core/xxh3.hpp"

namespace capstan {

std::vector<Keep::ForwardTensor> Keep::forward_tensors() const {
  std::vector<ForwardTensor> all;
  for (const NamedTensor& buffer : parts_.model.buffers()) {
    if (buffer.persistent) all.push_back({buffer.name, kBuffer, buffer.tensor});
  }
  for (const NamedTensor& parameter : parts_.model.parameters()) {
    if (at::isFloatingType(parameter.tensor.scalar_type())) continue;
    all.push_back({parameter.name, kParam, parameter.tensor.detach()});
  }
  return all;
}

void Keep::add_forward_tensors(CheckpointContents& contents, const char* call) {
  const std::vector<ForwardTensor> all = forward_tensors();
  if (all.empty()) return;
  std::vector<at::Tensor> values;
  std::string digests;
  for (const ForwardTensor& one : all) {
    values.push_back(one.tensor.contiguous());
    const at::Tensor here = values.back().cpu();
    digests += hex(xxh3(here.const_data_ptr(), here.nbytes()));
  }
  const int rank = parts_.communicator->rank();
  const auto told = parts_.communicator->all_gather_text(std::string(call) + ", buffers", digests, call);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto digest = [&](const std::string& text) { return text.substr(16 * i, 16); };
    const bool alike =
        std::all_of(told.begin(), told.end(), [&](const std::string& text) { return digest(text) == digest(digests); });
    if (rank > 0 && alike) continue;
    const std::string state = rank > 0 ? of_rank(all[i].state, rank) : all[i].state;
    contents.tensors.push_back({all[i].name, state, all[i].tensor.sizes().vec(), 0, values[i]});
  }
}

/// Those of all ranks, so that ranks agree.
void Keep::check_forward_tensors(const CheckpointLookup& lookup) const {
  for (const ForwardTensor& one : forward_tensors()) {
    for (int rank = 1; rank < parts_.communicator->size(); ++rank) {
      const std::string state = of_rank(one.state, rank);
      if (lookup.has(one.name, state)) lookup.require(one.name, state, one.tensor.sizes());
    }
  }
}

void Keep::load_forward_tensors(const CheckpointLookup& lookup, const SavedRun& saved) {
  const int rank = parts_.communicator->rank();
  std::vector<std::string> given_up;
  for (const ForwardTensor& one : forward_tensors()) {
    if (!lookup.strict() && !lookup.has(one.name, one.state)) continue;
    const bool same_world = saved.world_size == parts_.config.batch.world_size;
    const std::string own = of_rank(one.state, rank);
    lookup.copy(one.name, same_world && lookup.has(one.name, own) ? own : one.state, one.tensor);
    if (!same_world && lookup.has(one.name, of_rank(one.state, 1))) given_up.push_back(one.name);
  }
  if (given_up.empty() || rank > 0) return;
  log::info(lookup.where() + ": each of its " + std::to_string(saved.world_size) +
            " processes had values of its own of " + quoted_list(given_up) + ". With " +
            std::to_string(parts_.config.batch.world_size) + ", all go on with those of rank 0.");
}

}  // namespace capstan
