#include "core/compression/compressed_weights.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <stdexcept>
#include <variant>

#include "core/errors.hpp"
#include "core/host_tensor.hpp"

namespace capstan {

namespace {

/// A tensor without what is removed of its axes.
at::Tensor without_removed(at::Tensor values, const std::vector<std::vector<std::int64_t>>& kept) {
  for (std::size_t axis = 0; axis < kept.size(); ++axis) {
    if (!kept[axis].empty()) {
      values = values.index_select(static_cast<std::int64_t>(axis), at::tensor(kept[axis], at::kLong));
    }
  }
  return values.contiguous();
}

/// Indices of the elements of a row whose axes from 1 on keep some; empty: all of them.
std::vector<std::int64_t> kept_columns(const std::vector<std::int64_t>& shape,
                                       const std::vector<std::vector<std::int64_t>>& kept) {
  if (shape.size() < 2 || std::all_of(kept.begin() + 1, kept.end(), [](const auto& axis) { return axis.empty(); })) {
    return {};
  }
  const std::int64_t columns = c10::multiply_integers(shape.begin() + 1, shape.end());
  const std::vector<std::int64_t> of_row(shape.begin() + 1, shape.end());
  const std::vector<std::vector<std::int64_t>> rest(kept.begin() + 1, kept.end());
  const at::Tensor left = without_removed(at::arange(columns, host_options(at::kLong)).view(of_row), rest).view({-1});
  return {left.const_data_ptr<std::int64_t>(), left.const_data_ptr<std::int64_t>() + left.numel()};
}

}  // namespace

CompressedWeights::CompressedWeights(const CheckpointContents& contents, const std::string& where,
                                     const Compressions& compressions, std::int64_t updates,
                                     std::optional<at::ScalarType> dtype)
    : contents_(contents),
      where_(where),
      compressions_(compressions),
      updates_(updates),
      removed_(compressions.keep(updates, [this](const std::string& parameter, const std::string& state) {
        return read_state(parameter, state);
      })) {
  const std::vector<SafetensorsEntry> saved = exported_weights(contents, where);
  const std::vector<SafetensorsEntry> values = exported_weights(contents, where, dtype);
  for (std::size_t i = 0; i < saved.size(); ++i) {
    Weight weight{saved[i], values[i], nullptr, {}, {}, false};
    remove(weight);
    const CompressionPlan::Parameter* last = compressions.acting(weight.name(), updates);
    const CompressionPlan::Parameter* coder = compressions.coder(weight.name(), updates);
    if (last != nullptr && last->bits == 0 && !last->gradient && last->states.empty()) {
      throw RuntimeFault("parameter '" + weight.name() +
                         "': its compression gives no codes of it, and files hold codes of 1 to 8 bits. Train it with "
                         "target_bits of 8 or fewer, or export without --compressed.");
    }
    weight.masked = last != nullptr && last->bits == 0;
    if (coder != nullptr) choose_codes(weight, *coder);
    const bool smaller = weight.numel() < weight.saved.values.numel();
    if (smaller || weight.masked || (coder != nullptr && weight.plan == nullptr)) {
      weight.values.read = [this, i](std::int64_t from, std::int64_t count) {
        return cleaned(i).view({-1}).narrow(0, from, count);
      };
    }
    weights_.push_back(std::move(weight));
  }
  for (const KeptAxis& axis : removed_) {
    if (find(axis.tensor) == nullptr) {
      throw PluginError(axis.by + ", keep: tells of '" + axis.tensor + "', which the checkpoint has not.");
    }
  }
}

/// Gives a weight the shape that is left of it.
void CompressedWeights::remove(Weight& weight) {
  std::vector<std::int64_t> shape = weight.saved.values.sizes().vec();
  weight.kept.resize(shape.size());
  for (const KeptAxis& axis : removed_) {
    if (axis.tensor != weight.name()) continue;
    const auto index = static_cast<std::size_t>(axis.axis);
    if (axis.axis < 0 || index >= shape.size() || shape[index] != axis.of) {
      throw RuntimeFault("parameter '" + weight.name() + "': " + axis.by + " removes indices of axis " +
                         std::to_string(axis.axis) + ", " + std::to_string(axis.of) + " long, and its shape is " +
                         c10::str(weight.saved.values.sizes()) +
                         ". Is it removed by another entry as well? Name each axis once.");
    }
    weight.kept[index] = axis.kept;
    shape[index] = static_cast<std::int64_t>(axis.kept.size());
  }
  weight.values.values = values_elsewhere(shape, weight.values.values.scalar_type());
}

/// What is left has codes where each row that lost columns has one scale.
void CompressedWeights::choose_codes(Weight& weight, const CompressionPlan::Parameter& plan) {
  const std::vector<std::int64_t> shape = weight.saved.values.sizes().vec();
  RowGroups groups = row_groups(weight.name(), shape, plan);
  const auto columns = static_cast<std::int64_t>(kept_columns(shape, weight.kept).size());
  const bool fewer_rows = shape.size() >= 2 && !weight.kept[0].empty();
  const bool vector_shrinks = shape.size() < 2 && weight.numel() < weight.saved.values.numel();
  if (vector_shrinks || (columns > 0 && groups.per_row != 1)) return;
  if (columns > 0) groups.columns = columns;
  if (fewer_rows) groups.rows = static_cast<std::int64_t>(weight.kept[0].size());
  // Rows that shared a scale have copies of it.
  if (columns > 0 || fewer_rows) groups.group = groups.whole ? groups.rows * groups.columns : groups.size();
  weight.groups = groups;
  weight.plan = &plan;
}

at::Tensor CompressedWeights::master(const Weight& weight) const {
  return weight.saved.read(0, weight.saved.values.numel()).to(at::kFloat);
}

/// A state of the checkpoint, of however many parts.
at::Tensor CompressedWeights::read_state(const std::string& parameter, const std::string& state) const {
  at::Tensor whole;
  std::int64_t found = 0;
  for (const CheckpointTensor& part : contents_.tensors) {
    if (part.parameter != parameter || part.state != state) continue;
    if (!whole.defined()) whole = host_empty({c10::multiply_integers(part.shape)}, part.values.scalar_type());
    whole.narrow(0, part.offset, part.values.numel()).copy_(part.values.view({-1}));
    found += part.values.numel();
  }
  if (whole.defined() && found == whole.numel()) return whole;
  throw RuntimeFault(
      "checkpoint '" + where_ + "': lacks the state '" + state + "'" +
      (parameter.empty() ? "" : " of '" + parameter + "'") +
      ", which its compression needs. Was it saved by another version of the plugin? Train a step from it, "
      "and export what that saves.");
}

/// What is left of a weight's values, in the dtype of its entry; those of the last one stay until another is asked for.
const at::Tensor& CompressedWeights::cleaned(std::size_t index) {
  const Weight& weight = weights_[index];
  if (last_cleaned_ != weight.name()) {
    at::Tensor values = weight.saved.read(0, weight.saved.values.numel()).clone();
    if (compressions_.acts(weight.name(), updates_)) {
      const std::vector<std::int64_t> shape = weight.saved.values.sizes().vec();
      values = compressions_.transformed(
          weight.name(), shape, values.to(at::kFloat), updates_,
          [this](const std::string& parameter, const std::string& state) { return read_state(parameter, state); });
    }
    cleaned_values_ =
        without_removed(values.view(weight.saved.values.sizes()), weight.kept).to(weight.values.values.scalar_type());
    last_cleaned_ = weight.name();
  }
  return cleaned_values_;
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

std::size_t CompressedWeights::pruned() const {
  return static_cast<std::size_t>(
      std::count_if(weights_.begin(), weights_.end(), [](const Weight& weight) { return weight.is_pruned(); }));
}

const CodedRows& CompressedWeights::codes(const Weight& weight) {
  if (last_ == weight.name()) return last_codes_;
  const std::vector<std::int64_t> shape = weight.saved.values.sizes().vec();
  const at::Tensor values = master(weight);
  const RowGroups groups = row_groups(weight.name(), shape, *weight.plan);
  CodedRows rows = coded_rows(groups, compressions_.encode(weight.name(), shape, values, updates_));
  if (weight.masked) {
    // A mask leaves codes as they are, or makes them that of 0.
    const at::Tensor masked = compressions_.transformed(
        weight.name(), shape, values, updates_,
        [this](const std::string& parameter, const std::string& state) { return read_state(parameter, state); });
    const at::Tensor zeros = masked.view(rows.codes.sizes()).eq(0);
    const at::Tensor points = rows.zero_points.repeat_interleave(rows.codes.size(1) / rows.scales.size(1), 1);
    const bool holds_zero = !groups.has_zero_points || points.abs().lt(1 << (rows.bits - 1)).all().item<bool>();
    rows.codes = at::where(zeros, points.to(at::kChar), rows.codes);
    if (!holds_zero || !rows.values().equal(masked.view(rows.codes.sizes()))) {
      throw RuntimeFault("parameter '" + weight.name() +
                         "': what its compressions make of it are not its codes. Export without --compressed.");
    }
  }
  const std::vector<std::int64_t> columns = kept_columns(shape, weight.kept);
  const std::vector<std::int64_t> left = shape.size() >= 2 ? weight.kept[0] : std::vector<std::int64_t>();
  if (!left.empty()) {
    const at::Tensor index = at::tensor(left, at::kLong);
    rows = {rows.bits, rows.whole, rows.codes.index_select(0, index), rows.scales.index_select(0, index),
            rows.zero_points.index_select(0, index)};
  }
  if (!columns.empty()) rows.codes = rows.codes.index_select(1, at::tensor(columns, at::kLong));
  last_codes_ = std::move(rows);
  last_ = weight.name();
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
