#include "core/components/layer_chain.hpp"

#include <algorithm>
#include <exception>

#include "core/errors.hpp"

namespace capstan {

void LayerChain::add(const Component& observer) {
  const int order = observer.manifest().layer_order;
  const auto after = std::find_if(wrappers_.begin(), wrappers_.end(),
                                  [order](const Component* other) { return other->manifest().layer_order > order; });
  wrappers_.insert(after, &observer);
}

void LayerChain::set_names(const std::vector<std::string>& names) {
  places_.clear();
  for (const std::string& name : names) places_.emplace(name, static_cast<std::uint32_t>(places_.size()));
  calls_.assign(places_.size(), {});
}

std::vector<std::string> LayerChain::never_ran() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : places_) {
    if (calls_[place].left_out && !calls_[place].ran) names.push_back(name);
  }
  return names;
}

void LayerChain::run(const capstan_layer_call& call, const capstan_inner& inner, capstan_tensor* out) {
  const std::string name(as_view(call.name));
  const auto place = places_.find(name);
  Call known{call, &inner, CallInProgress::current(), "layer '" + name + "'"};
  known.described.struct_size = sizeof known.described;
  known.described.count = static_cast<std::uint32_t>(places_.size());
  known.described.index = place == places_.end() ? known.described.count : place->second;
  *out = run_from(0, known, call.hidden, call.arguments, call.argument_count);
  if (!known.ran) left_out_.insert(name);
  if (place == places_.end()) return;
  Calls& calls = calls_[place->second];
  calls.ran = calls.ran || known.ran;
  calls.left_out = calls.left_out || !known.ran;
}

/// The inner layer that a wrapper gets: the rest of the chain.
struct LayerChain::Rest {
  const LayerChain* chain;
  std::size_t position;
  const Call* call;

  static capstan_status run(void* ctx, capstan_tensor hidden, const capstan_argument* const* arguments,
                            std::size_t argument_count, capstan_tensor* out, capstan_error* error) {
    const auto& self = *static_cast<Rest*>(ctx);
    return guarded(error,
                   [&] { *out = self.chain->run_from(self.position, *self.call, hidden, arguments, argument_count); });
  }
};

capstan_tensor LayerChain::run_from(std::size_t position, const Call& call, capstan_tensor hidden,
                                    const capstan_argument* const* arguments, std::size_t argument_count) const {
  capstan_tensor result = nullptr;
  if (position == wrappers_.size()) {
    call.ran = true;
    call_plugin(call.model, call.where, [&](capstan_error* error) {
      return call.inner->run(call.inner->ctx, hidden, arguments, argument_count, &result, error);
    });
    return result;
  }

  const Component& observer = *wrappers_[position];
  const auto* table = observer.vtable<capstan_observer>();
  const std::string where = "observer '" + observer.manifest().type + "', " + call.where;
  Rest rest{this, position + 1, &call};
  capstan_layer_call described = call.described;
  described.hidden = hidden;
  described.arguments = arguments;
  described.argument_count = argument_count;
  const capstan_inner next{sizeof next, &rest, &Rest::run};
  call_plugin(observer.function("layer"), where,
              [&](capstan_error* error) { return table->layer(observer.self(), &described, &next, &result, error); });
  return result;
}

}  // namespace capstan
