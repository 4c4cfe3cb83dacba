#include "wrapped_layers.hpp"

#include <algorithm>
#include <string_view>

#include "capstan/sdk/config_mistake.hpp"

namespace capstan::random_ltd {
namespace {

bool has_component(std::string_view name, std::string_view component) {
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    if (name.substr(begin, end - begin) == component) return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace

WrappedLayers::WrappedLayers(const std::vector<std::string>& names, std::vector<std::int64_t> ids)
    : places_(names.size()) {
  std::sort(ids.begin(), ids.end());
  std::size_t next = 0;
  for (const std::int64_t id : ids) {
    const std::string text = std::to_string(id);
    while (next < names.size() && !has_component(names[next], text)) ++next;
    if (next == names.size()) {
      throw sdk::ConfigMistake("data_efficiency.data_routing.random_ltd.random_ltd_layer_id",
                               "the model has no layer " + text + (count_ > 0 ? " behind " + listed_ : "") +
                                   ": it has " + std::to_string(names.size()) + " layers, '" + names.front() +
                                   "' to '" + names.back() + "'.");
    }
    listed_ += (count_ > 0 ? ", '" : "'") + names[next] + "'";
    places_[next++] = count_++;
  }
}

}  // namespace capstan::random_ltd
