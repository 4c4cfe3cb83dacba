#include "core/compression/removal_record.hpp"

#include <stdexcept>
#include <variant>

#include "core/errors.hpp"

namespace capstan {

Json removal_record(const std::vector<KeptAxis>& removed, const Json& model) {
  Json record = Json::object();
  record["tensors"] = Json::array();
  for (const KeptAxis& axis : removed) {
    Json one = Json::object();
    one["name"] = axis.tensor;
    one["by"] = axis.by;
    one["axis"] = axis.axis;
    one["of"] = axis.of;
    one["kept"] = Json::array();
    for (const std::int64_t index : axis.kept) one["kept"].push_back(index);
    record["tensors"].push_back(std::move(one));
  }
  if (!model.is_null()) record["model"] = model;
  return record;
}

std::filesystem::path removal_record_of(const std::filesystem::path& weights) {
  std::error_code error;
  if (std::filesystem::is_directory(weights, error)) return weights / "compression.json";
  return std::filesystem::path(weights).replace_extension("compression.json");
}

void forget_removals(const std::filesystem::path& weights) {
  std::error_code none_there;
  const auto type = std::filesystem::status(weights, none_there).type();
  // Nothing stands beside a device or a pipe that tells of it.
  if (type == std::filesystem::file_type::character || type == std::filesystem::file_type::fifo) return;
  std::filesystem::remove(removal_record_of(weights), none_there);
}

Json pruned_params(const CompressedWeights& weights, const Json& description, const std::string& model) {
  const Json* told = description.find("pruned_shapes");
  if (told == nullptr) {
    throw RuntimeFault(
        "model '" + model +
        "': does not say which of its parameters tell the shapes that pruning leaves (\"pruned_shapes\" in "
        "what it tells of itself), so that no model would open the weights. Train without related_modules, "
        "or ask the plugin's author.");
  }
  Json params = Json::object();
  try {
    for (const auto& [name, places] : told->as_object()) {
      params[name] = Json::array();
      for (const Json& place : places.as_array()) {
        const CompressedWeights::Weight* weight = weights.find(place.at("tensor").as_string());
        const auto axis = static_cast<std::size_t>(place.at("axis").as_integer());
        const std::int64_t per = place.at("per").as_integer();
        if (weight == nullptr || axis >= weight->shape().size() || per < 1 || weight->shape()[axis] % per != 0) {
          throw PluginError("model '" + model +
                            "': what it says in \"pruned_shapes\" does not fit its weights: " + place.dump());
        }
        params[name].push_back(weight->shape()[axis] / per);
      }
    }
  } catch (const std::logic_error& error) {
    throw PluginError("model '" + model + "': what it says in \"pruned_shapes\" is malformed: " + error.what());
  } catch (const std::bad_variant_access&) {
    throw PluginError("model '" + model + "': what it says in \"pruned_shapes\" has values of a wrong type.");
  }
  return params;
}

void check_pruned_shapes(const CompressedWeights& weights, const Model& model) {
  std::string wrong;
  for (const auto* list : {&model.parameters(), &model.buffers()}) {
    for (const NamedTensor& named : *list) {
      const CompressedWeights::Weight* weight = weights.find(named.name);
      if (weight == nullptr || weight->shape() == named.tensor.sizes().vec()) continue;
      wrong += " '" + named.name + "' is " + c10::str(at::IntArrayRef(weight->shape())) +
               " after pruning, and must be " + c10::str(named.tensor.sizes()) + ".";
    }
  }
  if (wrong.empty()) return;
  throw RuntimeFault("model '" + model.description() + "': its layers do not fit each other any more:" + wrong +
                     " Some module reads what is removed: name it in related_modules of the entry that removes it, and "
                     "train a step from the checkpoint with that configuration.");
}

}  // namespace capstan
