#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "capstan/sdk/compression.hpp"
#include "capstan/sdk/config_mistake.hpp"
#include "masks.hpp"
#include "module_scope.hpp"
#include "snip_momentum.hpp"

namespace capstan::compression {
namespace {

const std::string kSection = "compression_training.sparse_pruning";

enum class Method { kL1, kTopk, kSnipMomentum };

// The states of a weight, in its plan's order.
constexpr std::size_t kMask = 0, kScores = 1;

/// Weights that are multiplied by a mask of 0 and 1: `l1` keeps the largest ones, chosen once, at first; `topk` those
/// with the largest trained scores, anew after each update; `snip_momentum` blocks with the largest momentum of
/// |weight * gradient|, more and more sparsely. Keys: the section compression_training.sparse_pruning.
class SparsePruning {
 public:
  SparsePruning(sdk::Host, const sdk::Params& params)
      : scopes_(read_scopes(params, kSection)), offset_(shared_integer(params, "schedule_offset", 0)) {
    const std::string method = shared_text(params, "method", "l1");
    method_ = method == "snip_momentum" ? Method::kSnipMomentum : method == "topk" ? Method::kTopk : Method::kL1;
    excluded_ = params.texts("/shared_parameters/excluded_modules");
    if (method_ == Method::kSnipMomentum) {
      read_snip(params);
      return;
    }
    for (const GroupScope& scope : scopes_) {
      ratios_.push_back(params.number("/different_groups/" + sdk::Params::escaped(scope.name) + "/params/dense_ratio"));
      if (ratios_.back() > 0 && ratios_.back() <= 1) continue;
      throw sdk::ConfigMistake(scope.where + ".params.dense_ratio",
                               "must be above 0 and at most 1, got " + std::to_string(ratios_.back()) + ".");
    }
  }

  sdk::CompressionPlan plan(const sdk::ModelTable& model) {
    return method_ == Method::kSnipMomentum ? plan_snip(model) : plan_groups(model);
  }

  bool active(std::int64_t updates) const { return updates >= offset_; }

  void prepare(std::span<const sdk::CompressedPiece> pieces, std::int64_t updates, bool fresh,
               const sdk::PieceRanks& ranks) {
    if (method_ == Method::kSnipMomentum) return prepare_snip(pieces, updates, fresh, ranks);
    if (method_ == Method::kL1 && !fresh) return;
    std::vector<std::vector<float>> magnitudes;
    std::vector<sdk::PieceRanks::Part> parts;
    std::vector<std::uint64_t> k;
    for (const sdk::CompressedPiece& piece : pieces) {
      std::span<const float> scores;
      if (method_ == Method::kTopk) {
        scores = piece.state<float>(kScores);
      } else {
        std::vector<float>& made = magnitudes.emplace_back(piece.input().begin(), piece.input().end());
        for (float& value : made) value = std::abs(value);
        scores = made;
      }
      parts.push_back({scores, static_cast<std::uint32_t>(k.size()), piece.state<std::uint8_t>(kMask)});
      k.push_back(kept_.at(std::string(piece.name())));
    }
    ranks.select_largest(parts, k);
  }

  void transform(const sdk::CompressedPiece& piece, std::int64_t, std::span<float> values) const {
    mask_elements(piece.state<std::uint8_t>(kMask), piece.input(), values);
  }

  void gradient(std::span<const sdk::CompressedPiece> pieces, std::int64_t, const sdk::PieceRanks&) const {
    for (const sdk::CompressedPiece& piece : pieces) {
      const std::span<float> scores = method_ == Method::kTopk ? piece.state_gradient(kScores) : std::span<float>();
      mask_gradient(piece.state<std::uint8_t>(kMask), piece.input(), piece.gradient(), scores);
    }
  }

  /// snip_momentum: score = 0.9 score + |weight * gradient|, element by element; means over blocks are taken of it.
  void before_update(std::span<const sdk::CompressedPiece> pieces, std::int64_t, const sdk::PieceRanks&) const {
    if (method_ != Method::kSnipMomentum) return;
    for (const sdk::CompressedPiece& piece : pieces) {
      float* scores = piece.state<float>(kScores).data();
      const float *weights = piece.input().data(), *gradient = piece.gradient().data();
      const auto scale = static_cast<float>(piece.grad_scale());
      sdk::parallel_for(0, static_cast<std::int64_t>(piece.input().size()), sdk::CompressedPiece::kBlock,
                        [=](std::int64_t from, std::int64_t to) {
                          for (std::int64_t i = from; i < to; ++i) {
                            scores[i] = kMomentum * scores[i] + std::abs(weights[i] * gradient[i] * scale);
                          }
                        });
    }
  }

 private:
  static constexpr float kMomentum = 0.9f;

  static std::string percent(double ratio) {
    char text[32];
    std::snprintf(text, sizeof text, "%.4g %% kept", 100 * ratio);
    return text;
  }

  void read_snip(const sdk::Params& params) {
    const std::string shared = kSection + ".shared_parameters.";
    const double dense =
        params.has("/shared_parameters/dense_ratio") ? params.number("/shared_parameters/dense_ratio") : 0.1;
    if (!(dense > 0 && dense < 1)) {
      throw sdk::ConfigMistake(shared + "dense_ratio", "must be between 0 and 1, got " + std::to_string(dense) + ".");
    }
    schedule_.first = offset_;
    schedule_.last = shared_integer(params, "schedule_offset_end", offset_);
    schedule_.stride = std::max<std::int64_t>(shared_integer(params, "schedule_offset_stride", 1), 1);
    schedule_.sparsity = 1 - dense;
    if (schedule_.last < schedule_.first) {
      throw sdk::ConfigMistake(
          shared + "schedule_offset_end",
          std::to_string(schedule_.last) + " is below schedule_offset, " + std::to_string(schedule_.first) + ".");
    }
    pattern_ = BlockPattern::read(shared_text(params, "block_pattern", "4x1"), shared + "block_pattern");
    const double most = static_cast<double>(pattern_.rows) / static_cast<double>(pattern_.columns);
    if (pattern_.of_groups && schedule_.sparsity > most + 1e-9) {
      throw sdk::ConfigMistake(shared + "dense_ratio", std::to_string(dense) + " would prune more than the " +
                                                           std::to_string(pattern_.rows) + " of " +
                                                           std::to_string(pattern_.columns) +
                                                           " inputs that block_pattern allows. Keep at least " +
                                                           std::to_string(1 - most) + ".");
    }
  }

  /// The modules that excluded_modules leaves alone. Warns of an entry that is found in none.
  std::set<const sdk::ModelModule*> excluded_modules(const sdk::ModelTable& model, sdk::CompressionPlan& plan) const {
    const std::string key = kSection + ".shared_parameters.excluded_modules";
    std::set<const sdk::ModelModule*> found;
    for (const std::string& pattern : excluded_) {
      const auto modules = search_modules(model, pattern, key);
      found.insert(modules.begin(), modules.end());
      if (!modules.empty()) continue;
      plan.warnings.push_back(key + ": '" + pattern + "' is found in the path of no module that has a weight.");
    }
    return found;
  }

  sdk::CompressionPlan plan_groups(const sdk::ModelTable& model) {
    const std::vector<ModuleKind> kinds = {ModuleKind::kLinear, ModuleKind::kConv2d};
    Selection chosen = select_modules(model, scopes_, kinds, kinds);
    const auto of = std::count_if(model.modules.begin(), model.modules.end(), [](const sdk::ModelModule& module) {
      return kind_of(module) == ModuleKind::kLinear || kind_of(module) == ModuleKind::kConv2d;
    });
    sdk::CompressionPlan plan;
    plan.warnings = chosen.warnings;
    const auto excluded = excluded_modules(model, plan);
    for (std::size_t i = 0; i < scopes_.size(); ++i) {
      std::erase_if(chosen.of_group[i], [&](const sdk::ModelModule* module) { return excluded.contains(module); });
      for (const sdk::ModelModule* module : chosen.of_group[i]) add_weight(plan, *module, ratios_[i]);
      plan.report.push_back(report_line("sparse_pruning", scopes_[i], chosen.of_group[i], static_cast<std::size_t>(of),
                                        percent(ratios_[i])));
    }
    return plan;
  }

  void add_weight(sdk::CompressionPlan& plan, const sdk::ModelModule& module, double ratio) {
    const std::vector<std::int64_t>& shape = module.find("weight")->shape;
    const auto numel = static_cast<std::uint64_t>(weight_numel(module));
    sdk::CompressionPlan::Parameter& weight = plan.parameters.emplace_back();
    weight.name = module.full_name("weight");
    weight.gradient = true;
    weight.states.push_back(sdk::CompressionPlan::State::of_elements("mask", sdk::Dtype::kUInt8));
    kept_[weight.name] = kept_of(ratio, numel);
    if (method_ != Method::kTopk) return;
    // Kaiming-uniform with a = sqrt(5).
    const double fan_in = static_cast<double>(numel) / static_cast<double>(shape[0]);
    weight.states.push_back(sdk::CompressionPlan::State::trained("sparse_mask_scores", shape, 1 / std::sqrt(fan_in)));
  }

  static bool is_layer(const sdk::ModelModule& module) {
    const sdk::ModelModule::Parameter* weight = module.find("weight");
    if (weight == nullptr || weight->shape.size() < 2) return false;
    return module.class_name.find("Linear") != std::string::npos || module.class_name.find("Conv") != std::string::npos;
  }

  /// The classifier: the model's last module, if that is a layer; dropouts do not count.
  static const sdk::ModelModule* last_layer(const sdk::ModelTable& model) {
    for (std::size_t i = model.modules.size(); i-- > 0;) {
      if (model.modules[i].class_name.find("Dropout") != std::string::npos) continue;
      return is_layer(model.modules[i]) ? &model.modules[i] : nullptr;
    }
    return nullptr;
  }

  sdk::CompressionPlan plan_snip(const sdk::ModelTable& model) {
    sdk::CompressionPlan plan;
    const auto excluded = excluded_modules(model, plan);
    const sdk::ModelModule* classifier = last_layer(model);
    std::size_t of = 0;
    std::vector<const sdk::ModelModule*> chosen;
    for (const sdk::ModelModule& module : model.modules) {
      if (!is_layer(module)) continue;
      ++of;
      if (&module == classifier || excluded.contains(&module) || !module.find("weight")->trained) continue;
      if (!BlockedWeight::fits(module.find("weight")->shape, pattern_)) {
        plan.warnings.push_back(kSection + ".shared_parameters.block_pattern: the weight of '" + module.path +
                                "' does not divide into such blocks, and is left as it is.");
        continue;
      }
      chosen.push_back(&module);
      sdk::CompressionPlan::Parameter& weight = plan.parameters.emplace_back();
      weight.name = module.full_name("weight");
      weight.states.push_back(sdk::CompressionPlan::State::of_elements("mask", sdk::Dtype::kUInt8));
      weight.states.push_back(sdk::CompressionPlan::State::of_elements("scores", sdk::Dtype::kFloat32));
      layers_.emplace(weight.name, BlockedWeight(module.find("weight")->shape, pattern_));
    }
    GroupScope all;
    all.name = "snip_momentum";
    plan.report.push_back(report_line("sparse_pruning", all, chosen, of, percent(1 - schedule_.sparsity)));
    return plan;
  }

  void prepare_snip(std::span<const sdk::CompressedPiece> pieces, std::int64_t updates, bool fresh,
                    const sdk::PieceRanks& ranks) {
    if (fresh) {
      for (const sdk::CompressedPiece& piece : pieces) {
        const auto mask = piece.state<std::uint8_t>(kMask);
        std::fill(mask.begin(), mask.end(), std::uint8_t{1});
      }
    }
    if (updates > 0 && !pieces.empty() && schedule_.is_instant(updates)) prune(pieces, updates, ranks);
    if (!active(updates)) return;
    for (const sdk::CompressedPiece& piece : pieces) {
      mask_elements(piece.state<std::uint8_t>(kMask), piece.master(), piece.master());
    }
  }

  /// Layer by layer, so that no rank has the scores of more than one layer.
  void prune(std::span<const sdk::CompressedPiece> pieces, std::int64_t updates, const sdk::PieceRanks& ranks) {
    const bool parts = are_parts(pieces, ranks);
    const std::uint64_t world = parts ? ranks.collectives().world_size() : 1;
    const std::uint64_t own = parts ? ranks.collectives().rank() : 0;
    std::vector<std::vector<float>> of_layers;
    std::vector<std::uint64_t> blocks;
    std::uint64_t total = 0;
    for (const sdk::CompressedPiece& piece : pieces) {
      const BlockedWeight& layer = layers_.at(std::string(piece.name()));
      const std::vector<float> scores = layer.scores(whole_scores(piece, ranks));
      blocks.push_back(layer.blocks());
      total += blocks.back();
      const auto from = static_cast<std::ptrdiff_t>(blocks.back() * own / world);
      const auto to = static_cast<std::ptrdiff_t>(blocks.back() * (own + 1) / world);
      of_layers.emplace_back(scores.begin() + from, scores.begin() + to);
    }
    const double of_block =
        pattern_.of_groups ? static_cast<double>(pattern_.rows) / static_cast<double>(pattern_.columns) : 1.0;
    const double wanted = schedule_.share(updates) / of_block * static_cast<double>(total);
    const auto pruned = std::min(total, static_cast<std::uint64_t>(std::floor(wanted * (1 + 1e-12))));
    if (pruned == 0) return;
    const std::vector<float> thresholds = snip_thresholds(of_layers, blocks, pruned, parts, ranks);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const BlockedWeight& layer = layers_.at(std::string(pieces[i].name()));
      const std::vector<float> elements = whole_scores(pieces[i], ranks);
      layer.fill_mask(elements, layer.scores(elements), thresholds[i], pieces[i].offset(),
                      pieces[i].state<std::uint8_t>(kMask));
    }
  }

  static std::vector<float> whole_scores(const sdk::CompressedPiece& piece, const sdk::PieceRanks& ranks) {
    return ranks.gather<float>(piece, piece.state<float>(kScores));
  }

  /// Whether the ranks have parts of the weights, or each of them all.
  static bool are_parts(std::span<const sdk::CompressedPiece> pieces, const sdk::PieceRanks& ranks) {
    std::int64_t here = 0, whole = 0;
    for (const sdk::CompressedPiece& piece : pieces) {
      here += static_cast<std::int64_t>(piece.input().size());
      whole += static_cast<std::int64_t>(piece.full_numel());
    }
    ranks.collectives().all_reduce_sum(std::span<std::int64_t>(&here, 1));
    return ranks.collectives().world_size() > 1 && here == whole;
  }

  std::vector<GroupScope> scopes_;
  std::vector<double> ratios_;  // one a group
  std::int64_t offset_ = 0;
  Method method_ = Method::kL1;
  std::map<std::string, std::uint64_t> kept_;  // elements, by the weight's name
  SnipSchedule schedule_;
  BlockPattern pattern_;
  std::vector<std::string> excluded_;
  std::map<std::string, BlockedWeight> layers_;  // by the weight's name
};

}  // namespace
}  // namespace capstan::compression

CAPSTAN_PLUGIN(&capstan::sdk::compression<capstan::compression::SparsePruning, "sparse_pruning">)
