#include "unit_pruning.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "capstan/sdk/config_mistake.hpp"

namespace capstan::compression {
namespace {

// The states of a weight, in its plan's order.
constexpr std::size_t kMask = 0, kScores = 1;

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t& size : shape) text += (&size == shape.data() ? "" : ", ") + std::to_string(size);
  return text + "]";
}

bool is_batch_norm(const sdk::ModelModule& module) {
  const sdk::ModelModule::Parameter* weight = module.find("weight");
  return weight != nullptr && weight->shape.size() == 1 && module.class_name.find("BatchNorm") != std::string::npos;
}

std::string percent(double ratio) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g %% kept", 100 * ratio);
  return text;
}

}  // namespace

UnitPruning::UnitPruning(const UnitMethod& method, const sdk::Params& params)
    : method_(method),
      section_(std::string("compression_training.") + method.name),
      scopes_(read_scopes(params, section_)),
      offset_(shared_integer(params, "schedule_offset", 0)),
      heads_(shared_integer(params, "num_heads", 0)) {
  const std::string how = shared_text(params, "method", method.of_inputs ? "topk" : "l1");
  trained_ = how == "topk";
  if (how != "topk" && (how != "l1" || method.of_inputs)) {
    throw sdk::ConfigMistake(
        section_ + ".shared_parameters.method",
        std::string("must be ") + (method.of_inputs ? "topk" : "l1 or topk") + ", got \"" + how + "\".");
  }
  if (method.of_inputs && heads_ < 1 && !scopes_.empty()) {
    throw sdk::ConfigMistake(section_ + ".shared_parameters.num_heads", "is missing; head pruning needs it.");
  }
  for (const GroupScope& scope : scopes_) {
    const std::string at = "/different_groups/" + sdk::Params::escaped(scope.name) + "/params/dense_ratio";
    const double ratio = params.number(at);
    if (!(ratio > 0 && ratio <= 1)) {
      throw sdk::ConfigMistake(scope.where + ".params.dense_ratio",
                               "must be above 0 and at most 1, got " + std::to_string(ratio) + ".");
    }
    ratios_.push_back(ratio);
  }
}

std::size_t UnitPruning::count_fitting(const sdk::ModelTable& model) const {
  return static_cast<std::size_t>(
      std::count_if(model.modules.begin(), model.modules.end(),
                    [&](const sdk::ModelModule& module) { return kind_of(module) == method_.kind; }));
}

sdk::CompressionPlan UnitPruning::plan(const sdk::ModelTable& model) {
  const Selection chosen = select_modules(model, scopes_, {method_.kind}, {method_.kind});
  sdk::CompressionPlan plan;
  sdk::ConfigMistakes mistakes;
  plan.warnings = chosen.warnings;
  for (std::size_t i = 0; i < scopes_.size(); ++i) {
    for (const sdk::ModelModule* module : chosen.of_group[i]) {
      mistakes.gather([&] { add_target(plan, *module, scopes_[i], ratios_[i]); });
    }
    plan.report.push_back(
        report_line(method_.name, scopes_[i], chosen.of_group[i], count_fitting(model), percent(ratios_[i])));
  }
  for (std::size_t i = 0; i < scopes_.size(); ++i) {
    mistakes.gather([&] { add_related(plan, model, scopes_[i], chosen.of_pattern[i]); });
  }
  mistakes.throw_if_any();
  return plan;
}

void UnitPruning::add_target(sdk::CompressionPlan& plan, const sdk::ModelModule& module, const GroupScope& scope,
                             double ratio) {
  const std::vector<std::int64_t>& shape = module.find("weight")->shape;
  const std::uint64_t rows = static_cast<std::uint64_t>(shape[0]);
  const std::uint64_t columns = static_cast<std::uint64_t>(weight_numel(module)) / rows;
  if (method_.of_inputs && columns % static_cast<std::uint64_t>(heads_) != 0) {
    throw sdk::ConfigMistake(section_ + ".shared_parameters.num_heads",
                             std::to_string(heads_) + " does not divide the inputs of '" + module.path +
                                 "', whose weight is " + shape_text(shape) + ".");
  }
  Target target;
  target.weight = module.full_name("weight");
  target.count = method_.of_inputs ? static_cast<std::uint64_t>(heads_) : rows;
  target.keep = kept_of(ratio, target.count);
  const UnitLayout units{method_.of_inputs ? columns / target.count : columns, target.count};
  const std::size_t index = targets_.size();
  target_of_[module.path] = index;
  targets_.push_back(std::move(target));

  add_masked(plan, targets_[index].weight, index, units);
  sdk::CompressionPlan::Parameter& weight = plan.parameters.back();
  weight.states_of.clear();
  weight.states.push_back(sdk::CompressionPlan::State::whole("mask", sdk::Dtype::kUInt8, targets_[index].count));
  if (trained_) {
    // Kaiming-uniform with a = sqrt(5) of a score tensor [units, 1, ...], or [1, heads].
    std::vector<std::int64_t> scores(shape.size(), 1);
    scores[method_.of_inputs ? 1 : 0] = static_cast<std::int64_t>(targets_[index].count);
    const double fan_in = method_.of_inputs ? static_cast<double>(targets_[index].count) : 1;
    weight.states.push_back(sdk::CompressionPlan::State::trained(method_.scores, scores, 1 / std::sqrt(fan_in)));
  }
  const sdk::ModelModule::Parameter* bias = module.find("bias");
  if (bias == nullptr || method_.of_inputs) return;
  if (!bias->trained) {
    throw sdk::ConfigMistake(scope.where + ".modules", "the weight of '" + module.path +
                                                           "' is trained and its bias is not, so that the bias " +
                                                           "of what is pruned would stay. Train both.");
  }
  add_masked(plan, module.full_name("bias"), index, {1, targets_[index].count});
}

void UnitPruning::add_masked(sdk::CompressionPlan& plan, const std::string& name, std::size_t target,
                             const UnitLayout& units) {
  sdk::CompressionPlan::Parameter& parameter = plan.parameters.emplace_back();
  parameter.name = name;
  parameter.states_of = targets_[target].weight;
  parameter.gradient = true;
  masked_[name] = {target, units, name == targets_[target].weight};
}

/// The j-th module of each expression goes with the j-th of each of its related expressions.
void UnitPruning::add_related(sdk::CompressionPlan& plan, const sdk::ModelTable& model, const GroupScope& scope,
                              const std::vector<std::vector<const sdk::ModelModule*>>& of_pattern) {
  for (std::size_t i = 0; i < std::min(scope.related.size(), of_pattern.size()); ++i) {
    const std::string where = scope.where + ".related_modules[" + std::to_string(i) + "]";
    for (const sdk::ModelModule* module : of_pattern[i]) {
      if (!target_of_.contains(module->path) || scope.related[i].empty()) continue;
      Target& target = targets_[target_of_.at(module->path)];
      const std::int64_t of = static_cast<std::int64_t>(target.count);
      const std::uint64_t width = method_.of_inputs ? masked_.at(target.weight).units.inner : 1;
      target.axes.push_back({target.weight, method_.of_inputs ? 1 : 0, of, {}});
      target.widths.push_back(width);
      if (!method_.of_inputs && module->find("bias") != nullptr) {
        target.axes.push_back({module->full_name("bias"), 0, of, {}});
        target.widths.push_back(1);
      }
    }
    for (const std::string& pattern : scope.related[i]) {
      const auto found = search_modules(model, pattern, where);
      if (found.size() != of_pattern[i].size()) {
        throw sdk::ConfigMistake(where, "'" + pattern + "' finds " + std::to_string(found.size()) + " modules, and '" +
                                            scope.patterns[i] + "' of modules[" + std::to_string(i) + "] " +
                                            std::to_string(of_pattern[i].size()) + "; each of these needs one.");
      }
      for (std::size_t j = 0; j < found.size(); ++j) {
        if (target_of_.contains(of_pattern[i][j]->path)) relate(plan, *of_pattern[i][j], *found[j], where);
      }
    }
  }
}

void UnitPruning::check_fit(const sdk::ModelModule& module, const sdk::ModelModule& related, std::int64_t has,
                            std::int64_t needs, const char* what, const std::string& where) const {
  if (has == needs) return;
  throw sdk::ConfigMistake(where, "'" + related.path + "', whose weight is " +
                                      shape_text(related.find("weight")->shape) + ", has " + std::to_string(has) + " " +
                                      what + ", and '" + module.path + "', whose weight is " +
                                      shape_text(module.find("weight")->shape) + ", needs " + std::to_string(needs) +
                                      ". Name the module that its " + method_.unit + " belong to.");
}

void UnitPruning::relate(sdk::CompressionPlan& plan, const sdk::ModelModule& module, const sdk::ModelModule& related,
                         const std::string& where) {
  const std::size_t index = target_of_.at(module.path);
  Target& target = targets_[index];
  const std::vector<std::int64_t>& shape = related.find("weight")->shape;
  const auto count = static_cast<std::int64_t>(target.count);
  const auto add = [&](const std::string& tensor, std::int64_t axis, std::int64_t of, std::uint64_t width) {
    target.axes.push_back({tensor, axis, of, {}});
    target.widths.push_back(width);
  };
  if (method_.of_inputs) {
    const std::int64_t columns = module.find("weight")->shape[1];
    check_fit(module, related, shape[0], columns * related.fused, "outputs", where);
    const auto width = static_cast<std::uint64_t>(columns / count);
    add(related.full_name("weight"), 0, count * related.fused, width);
    if (related.find("bias") != nullptr) add(related.full_name("bias"), 0, count * related.fused, width);
    return;
  }
  if (!is_batch_norm(related)) {
    if (shape.size() < 2) check_fit(module, related, 0, count, "inputs", where);
    check_fit(module, related, shape[1], count, "inputs", where);
    add(related.full_name("weight"), 1, count, 1);
    return;
  }
  check_fit(module, related, shape[0], count, "channels", where);
  // What a batch norm would make of a channel of zeros must go as well, or removing the channel would change the model.
  for (const sdk::ModelModule::Parameter& parameter : related.parameters) {
    add(related.full_name(parameter.name), 0, count, 1);
    if (!parameter.trained) {
      throw sdk::ConfigMistake(
          where, "'" + related.full_name(parameter.name) +
                     "' is not trained, and would be masked with its channel. Train it, or leave the batch norm out.");
    }
    const std::string name = related.full_name(parameter.name);
    if (masked_.contains(name)) throw sdk::ConfigMistake(where, "'" + name + "' belongs to two masks. Name it once.");
    add_masked(plan, name, index, {1, target.count});
  }
  for (const sdk::ModelModule::Parameter& buffer : related.buffers) {
    if (buffer.shape.size() == 1 && buffer.shape[0] == count) add(related.full_name(buffer.name), 0, count, 1);
  }
}

const UnitPruning::Masked& UnitPruning::masked(const sdk::CompressedPiece& piece) const {
  const auto found = masked_.find(piece.name());
  if (found == masked_.end()) piece.fail(std::string("is not in the plan of ") + method_.name + ".");
  return found->second;
}

void UnitPruning::prepare(std::span<const sdk::CompressedPiece> pieces, std::int64_t, bool fresh,
                          const sdk::PieceRanks& ranks) {
  std::vector<sdk::CompressedPiece> weights;
  for (const sdk::CompressedPiece& piece : pieces) {
    if (masked(piece).is_weight) weights.push_back(piece);
  }
  if (trained_) {
    for (const sdk::CompressedPiece& piece : weights) {
      keep_largest(piece.state<float>(kScores), targets_[masked(piece).target].keep, piece.state<std::uint8_t>(kMask));
    }
    return;
  }
  if (!fresh) return;
  std::vector<std::uint64_t> sizes;
  std::vector<std::vector<double>> partials;
  for (const sdk::CompressedPiece& piece : weights) {
    sizes.push_back(masked(piece).units.inner);
    partials.push_back(sums_of_magnitudes(piece, sizes.back()));
  }
  const auto norms = ranks.sum_groups(weights, sizes, partials);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::vector<float> scores(norms[i].begin(), norms[i].end());
    keep_largest(scores, targets_[masked(weights[i]).target].keep, weights[i].state<std::uint8_t>(kMask));
  }
}

void UnitPruning::transform(const sdk::CompressedPiece& piece, std::int64_t, std::span<float> values) {
  mask_units(piece, masked(piece).units, piece.state<std::uint8_t>(kMask), piece.input(), values);
}

void UnitPruning::gradient(std::span<const sdk::CompressedPiece> pieces, std::int64_t, const sdk::PieceRanks& ranks) {
  if (trained_) {
    std::vector<std::uint64_t> sizes;
    std::vector<std::vector<double>> partials;
    for (const sdk::CompressedPiece& piece : pieces) {
      sizes.push_back(masked(piece).units.inner);
      partials.push_back(sums_of_products(piece, sizes.back()));
    }
    const auto sums = ranks.sum_groups(pieces, sizes, partials);
    std::vector<std::vector<double>> of_targets(targets_.size());
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const Masked& one = masked(pieces[i]);
      std::vector<double>& of_units = of_targets[one.target];
      of_units.resize(one.units.count);
      for (std::size_t run = 0; run < sums[i].size(); ++run) of_units[run % one.units.count] += sums[i][run];
    }
    for (const sdk::CompressedPiece& piece : pieces) {
      const Masked& one = masked(piece);
      if (!one.is_weight) continue;
      const std::span<float> to = piece.state_gradient(kScores);
      std::transform(of_targets[one.target].begin(), of_targets[one.target].end(), to.begin(),
                     [](double sum) { return static_cast<float>(sum); });
    }
  }
  for (const sdk::CompressedPiece& piece : pieces) {
    mask_units(piece, masked(piece).units, piece.state<std::uint8_t>(kMask), piece.gradient(), piece.gradient());
  }
}

std::vector<sdk::KeptAxis> UnitPruning::keep(std::span<const sdk::CompressedPiece> pieces, std::int64_t) {
  std::vector<sdk::KeptAxis> all;
  for (const sdk::CompressedPiece& piece : pieces) {
    const Masked& one = masked(piece);
    if (!one.is_weight) continue;
    const Target& target = targets_[one.target];
    const std::span<const std::uint8_t> mask = piece.state<std::uint8_t>(kMask);
    for (std::size_t i = 0; i < target.axes.size(); ++i) {
      sdk::KeptAxis& axis = all.emplace_back(target.axes[i]);
      const auto width = static_cast<std::int64_t>(target.widths[i]);
      for (std::int64_t unit = 0; unit < axis.of; ++unit) {
        if (mask[static_cast<std::size_t>(unit) % target.count] == 0) continue;
        for (std::int64_t k = 0; k < width; ++k) axis.kept.push_back(unit * width + k);
      }
      axis.of *= width;
    }
  }
  return all;
}

}  // namespace capstan::compression
