#include "core/compression/compressed_weights.hpp"

#include <algorithm>
#include <stdexcept>
#include <variant>

#include "core/errors.hpp"

namespace capstan {

CompressedWeights::CompressedWeights(const CheckpointContents& contents, const std::string& where,
                                     const Compressions& compressions, std::int64_t updates,
                                     std::optional<at::ScalarType> dtype)
    : compressions_(compressions), updates_(updates) {
  const std::vector<SafetensorsEntry> saved = exported_weights(contents, where);
  const std::vector<SafetensorsEntry> values = exported_weights(contents, where, dtype);
  for (std::size_t i = 0; i < saved.size(); ++i) {
    Weight weight{saved[i], values[i], compressions.acting(saved[i].name, updates), {}};
    if (weight.plan != nullptr && weight.plan->bits == 0) {
      throw RuntimeFault("parameter '" + weight.name() +
                         "': its compression gives no codes of it, and files hold codes of 1 to 8 bits. Train it with "
                         "target_bits of 8 or fewer, or export without --compressed.");
    }
    if (weight.plan != nullptr) weight.groups = row_groups(weight.name(), weight.shape(), *weight.plan);
    weights_.push_back(std::move(weight));
  }
}

const CompressedWeights::Weight* CompressedWeights::find(const std::string& name) const {
  const auto found =
      std::find_if(weights_.begin(), weights_.end(), [&](const Weight& weight) { return weight.name() == name; });
  return found == weights_.end() ? nullptr : &*found;
}

std::size_t CompressedWeights::coded() const {
  return static_cast<std::size_t>(
      std::count_if(weights_.begin(), weights_.end(), [](const Weight& weight) { return weight.plan != nullptr; }));
}

const CodedRows& CompressedWeights::codes(const Weight& weight) {
  if (last_ != weight.name()) {
    const std::int64_t numel = weight.saved.values.numel();
    const at::Tensor master = weight.saved.read(0, numel).to(at::kFloat);
    last_codes_ = coded_rows(weight.groups, compressions_.encode(weight.name(), weight.shape(), master, updates_));
    last_ = weight.name();
  }
  return last_codes_;
}

NamesElsewhere names_elsewhere(const Json& description, const std::string& key, const std::string& facts,
                               const std::string& model) {
  const Json* told = description.find(key);
  if (told == nullptr) {
    throw PluginError("model '" + model + "': does not say how such a file calls its weights (\"" + key +
                      "\" in what it tells of itself). Use --to safetensors instead.");
  }
  if (const Json* refused = told->find("refused")) {
    throw RuntimeFault("model '" + model + "': " + (refused->is_string() ? refused->as_string() : refused->dump()));
  }
  try {
    NamesElsewhere names{model, told->at(facts), {}};
    for (const Json& tensor : told->at("tensors").as_array()) {
      NamedRows& one = names.tensors.emplace_back();
      one.parameter = tensor.at("parameter").as_string();
      one.name = tensor.at("name").as_string();
      if (const Json* rows = tensor.find("rows")) {
        one.first = rows->as_array().at(0).as_integer();
        one.count = rows->as_array().at(1).as_integer();
      }
      if (const Json* zeros = tensor.find("zero_rows")) one.zero_rows = zeros->as_integer();
      if (const Json* values = tensor.find("as_values")) one.as_values = values->as_bool();
    }
    if (!names.facts.is_object()) throw std::out_of_range(facts + " is not an object");
    return names;
  } catch (const std::logic_error& error) {
    throw PluginError("model '" + model + "': what it says in \"" + key + "\" is malformed: " + error.what());
  } catch (const std::bad_variant_access&) {
    throw PluginError("model '" + model + "': what it says in \"" + key + "\" has values of a wrong type.");
  }
}

}  // namespace capstan
