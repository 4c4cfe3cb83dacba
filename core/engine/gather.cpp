#include "core/engine/gather.hpp"

#include <exception>
#include <string>
#include <utility>

#include "core/engine/state.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"

namespace capstan {

GatherScope::GatherScope(ParameterStore& store, const std::shared_ptr<std::size_t>& open,
                         std::vector<std::size_t> parameters, std::optional<int> written_by)
    : store_(&store), open_(open), parameters_(std::move(parameters)), written_by_(written_by) {
  store.hold(parameters_);
  ++*open;
}

GatherScope::GatherScope(GatherScope&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)),
      open_(std::move(other.open_)),
      parameters_(std::move(other.parameters_)),
      written_by_(other.written_by_) {}

GatherScope::~GatherScope() {
  try {
    close();
  } catch (const std::exception& error) {
    log::warning(std::string("gathered parameters: ") + error.what());
  }
}

void GatherScope::close() {
  ParameterStore* store = std::exchange(store_, nullptr);
  if (store == nullptr) return;
  const std::shared_ptr<std::size_t> open = open_.lock();
  if (!open) {
    throw RuntimeFault(
        "gather: the engine was destroyed while its parameters were gathered, so that values written there are lost. "
        "Close the scope first.");
  }
  --*open;
  if (written_by_) store->take_values(parameters_, *written_by_);
  store->let_go(parameters_);
  if (written_by_) store->compress_taken(parameters_);
}

GatherScope Engine::gather(const std::vector<std::string>& names, std::optional<int> written_by) {
  State& state = *state_;
  if (state.under_way.micro_step != 0 && written_by) {
    throw RuntimeFault("gather: values cannot be written in the middle of a step. Finish it first.");
  }
  if (written_by && (*written_by < 0 || *written_by >= world_size())) {
    throw RuntimeFault("gather: there is no rank " + std::to_string(*written_by) + "; ranks are 0 to " +
                       std::to_string(world_size() - 1) + ".");
  }
  if (written_by) state.keep.snapshots().forget();
  const std::vector<ParameterEntry>& entries = state.store.entries();
  const std::vector<NamedTensor>& frozen = state.store.frozen();
  std::vector<std::size_t> parameters;
  if (names.empty()) {
    for (std::size_t i = 0; i < entries.size() + frozen.size(); ++i) parameters.push_back(i);
  }
  for (const std::string& name : names) {
    std::size_t i = 0;
    while (i < entries.size() && entries[i].name != name) ++i;
    while (i >= entries.size() && i < entries.size() + frozen.size() && frozen[i - entries.size()].name != name) ++i;
    if (i == entries.size() + frozen.size()) {
      throw RuntimeFault("gather: this model has no parameter '" + name + "' of floating point.");
    }
    parameters.push_back(i);
  }
  return GatherScope(state.store, state.open_gathers, std::move(parameters), written_by);
}

std::size_t Engine::open_gathers() const { return *state_->open_gathers; }

}  // namespace capstan
