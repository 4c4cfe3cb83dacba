#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "capstan/sdk/collectives.hpp"
#include "capstan/sdk/compression.hpp"
#include "capstan/sdk/config_mistake.hpp"
#include "capstan/sdk/floats.hpp"
#include "capstan/sdk/parallel.hpp"
#include "capstan/sdk/quantize.hpp"
#include "module_scope.hpp"
#include "running_range.hpp"

namespace capstan::compression {
namespace {

namespace quantize = sdk::quantize;

const std::string kSection = "compression_training.activation_quantization";
constexpr std::int64_t kGrain = 32768;   // elements that are worth a thread
constexpr std::size_t kBatchedDims = 4;  // of images: batch, channels, height, width

/// Inputs of layers, rounded to few bits. Keys: the section compression_training.activation_quantization.
class ActivationQuantization {
 public:
  ActivationQuantization(const sdk::Host&, const sdk::Params& params) : scopes_(read_scopes(params, kSection)) {
    offset_ = shared_integer(params, "schedule_offset", 0);
    symmetric_ = shared_text(params, "quantization_type", "symmetric") == "symmetric";
    static_ = shared_text(params, "range_calibration", "static") == "static";
    for (const GroupScope& scope : scopes_) {
      const std::int64_t bits =
          params.integer("/different_groups/" + sdk::Params::escaped(scope.name) + "/params/bits");
      if (bits != 4 && bits != 8) {
        throw sdk::ConfigMistake(scope.where + ".params.bits", "must be 4 or 8, got " + std::to_string(bits) + ".");
      }
      bits_.push_back(static_cast<int>(bits));
    }
  }

  sdk::CompressionPlan plan(const sdk::ModelTable& model) {
    const std::vector<ModuleKind> kinds = {ModuleKind::kLinear, ModuleKind::kConv2d};
    const Selection chosen = select_modules(model, scopes_, kinds, kinds);
    const auto of = std::count_if(model.modules.begin(), model.modules.end(), [](const sdk::ModelModule& module) {
      return kind_of(module) == ModuleKind::kLinear || kind_of(module) == ModuleKind::kConv2d;
    });
    sdk::CompressionPlan plan;
    plan.warnings = chosen.warnings;
    for (std::size_t i = 0; i < scopes_.size(); ++i) {
      for (const sdk::ModelModule* module : chosen.of_group[i]) {
        inputs_[module->path] = {bits_[i], kind_of(*module) == ModuleKind::kConv2d, {}};
        plan.operands.push_back(module->path);
        plan.named_by[module->path] = scopes_[i].where + ".modules";
      }
      plan.report.push_back(report_line("activation_quantization", scopes_[i], chosen.of_group[i],
                                        static_cast<std::size_t>(of), bits_text(bits_[i])));
    }
    return plan;
  }

  bool active(std::int64_t updates) const { return updates >= offset_; }

  void operand(std::string_view module, capstan_tensor input, std::int64_t, bool training, capstan_tensor out) {
    const auto found = inputs_.find(module);
    if (found == inputs_.end()) throw sdk::Error("is not in the plan of activation_quantization.");
    Input& layer = found->second;
    const sdk::Values from = sdk::values_of(input), to = sdk::values_of(out);
    if (!sdk::on_cpu(input) || !from.is_float()) {
      throw sdk::Error("quantises float32, bfloat16 and float16 activations in host memory; this input is " +
                       (sdk::on_cpu(input) ? sdk::dtype_name(input) : std::string("on another device")) + ".");
    }
    const std::int64_t numel = sdk::numel_of(input);
    if (numel == 0) return;
    if (static_) {
      if (training) {
        const quantize::Extremes extremes = extremes_of(from, numel);
        layer.range.observe(extremes.low, extremes.high);
      }
      const quantize::Grid grid =
          grid_of(static_cast<float>(layer.range.low()), static_cast<float>(layer.range.high()), layer.bits);
      return quantise(from, to, numel, kGrain, [&](std::span<const float>) { return grid; });
    }
    quantise(from, to, numel, group_of(layer, sdk::shape_of(input), numel), [&](std::span<const float> x) {
      const quantize::Extremes extremes = quantize::extremes(x);
      return grid_of(extremes.low, extremes.high, layer.bits);
    });
  }

  /// The range of a step is that of all ranks' micro-batches: what the ranks found in their k-th use of a layer is
  /// joined. A rank that used a layer less often has no say in the later uses.
  void settle(std::int64_t, const sdk::Collectives& ranks) {
    if (!static_ || inputs_.empty()) return;
    std::vector<double> counts, mine;
    for (const auto& [path, layer] : inputs_) {
      const std::vector<double>& observed = layer.range.observed();
      counts.push_back(static_cast<double>(observed.size()));
      mine.insert(mine.end(), observed.begin(), observed.end());
    }
    const std::vector<double> all_counts = gathered(ranks, counts);
    std::size_t room = 0;
    std::vector<std::size_t> at(ranks.world_size());  // the next number of each rank
    for (std::size_t rank = 0; rank < at.size(); ++rank) {
      const auto first = all_counts.begin() + static_cast<std::ptrdiff_t>(rank * counts.size());
      room = std::max(room, static_cast<std::size_t>(
                                std::accumulate(first, first + static_cast<std::ptrdiff_t>(counts.size()), 0.0)));
    }
    if (room == 0) return;
    for (std::size_t rank = 0; rank < at.size(); ++rank) at[rank] = rank * room;
    mine.resize(room);
    const std::vector<double> all = gathered(ranks, mine);
    std::size_t layer_number = 0;
    for (auto& [path, layer] : inputs_) {
      std::vector<double> joined;
      for (std::size_t rank = 0; rank < at.size(); ++rank) {
        const auto count = static_cast<std::size_t>(all_counts[rank * counts.size() + layer_number]);
        join(joined, std::span(all).subspan(at[rank], count));
        at[rank] += count;
      }
      layer.range.settle(joined);
      ++layer_number;
    }
  }

  /// The ranges as the last step left them, and what the step under way has seen.
  void save(const sdk::Sink& sink) const {
    std::string ranges, seen;
    for (const auto& [path, layer] : inputs_) {
      const double settled[] = {layer.range.settled_low(), layer.range.settled_high()};
      append(ranges, path, settled);
      if (!layer.range.observed().empty()) append(seen, path, layer.range.observed());
    }
    sink.write("{\"ranges\": {" + ranges + "}" + (seen.empty() ? "" : ", \"seen\": {" + seen + "}") + "}");
  }

  void load(const sdk::Document& saved) {
    for (auto& [path, layer] : inputs_) {
      const std::vector<double> range = saved.numbers("/ranges/" + sdk::Document::escaped(path));
      const std::vector<double> seen = saved.numbers("/seen/" + sdk::Document::escaped(path));
      if ((!range.empty() && range.size() != 2) || seen.size() % 2 != 0) {
        throw sdk::Error("the saved range of '" + path + "' must be two numbers, and two for each use in a step.");
      }
      layer.range.set(range.empty() ? 0 : range[0], range.empty() ? 0 : range[1]);
      for (std::size_t i = 0; i < seen.size(); i += 2) layer.range.observe(seen[i], seen[i + 1]);
    }
  }

 private:
  struct Input {
    int bits = 8;
    bool convolution = false;
    RunningRange range;
  };

  quantize::Grid grid_of(float low, float high, int bits) const {
    return symmetric_ ? quantize::symmetric_grid(std::max(std::fabs(low), std::fabs(high)), bits)
                      : quantize::asymmetric_grid(low, high, bits);
  }

  /// Dynamic ranges: a group a token for linear layers, one an image for convolutions.
  static std::int64_t group_of(const Input& layer, std::span<const std::int64_t> shape, std::int64_t numel) {
    if (!layer.convolution) return shape.back();
    return shape.size() == kBatchedDims ? numel / shape[0] : numel;
  }

  static std::vector<double> gathered(const sdk::Collectives& ranks, const std::vector<double>& mine) {
    if (ranks.world_size() == 1) return mine;
    std::vector<double> all(mine.size() * ranks.world_size());
    ranks.all_gather<double>(mine, all);
    return all;
  }

  /// Widens pairs of low and high by those of another rank. A batch that is not finite has no say on any rank.
  static void join(std::vector<double>& pairs, std::span<const double> other) {
    constexpr double kNone = std::numeric_limits<double>::infinity();
    while (pairs.size() < other.size()) pairs.insert(pairs.end(), {kNone, -kNone});
    for (std::size_t k = 0; k + 1 < other.size(); k += 2) {
      if (other[k] > other[k + 1]) continue;
      pairs[k] = std::min(pairs[k], other[k]);
      pairs[k + 1] = std::max(pairs[k + 1], other[k + 1]);
    }
  }

  /// Adds a member to the text of a JSON object's members.
  static void append(std::string& members, const std::string& path, std::span<const double> numbers) {
    members += (members.empty() ? "\"" : ", \"") + in_json(path) + "\": [";
    for (const double& number : numbers) {
      char text[40];
      std::snprintf(text, sizeof text, "%s%.17g", &number == numbers.data() ? "" : ", ", number);
      members += text;
    }
    members += "]";
  }

  static std::string in_json(const std::string& path) {
    std::string text;
    for (const char c : path) {
      if (c == '"' || c == '\\') text += '\\';
      text += c;
    }
    return text;
  }

  static quantize::Extremes extremes_of(const sdk::Values& from, std::int64_t numel) {
    const std::int64_t runs = (numel + kGrain - 1) / kGrain;
    std::vector<quantize::Extremes> found(static_cast<std::size_t>(runs));
    sdk::parallel_for(0, runs, 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> wide(from.dtype == sdk::Dtype::kFloat32 ? 0 : kGrain);
      for (std::int64_t run = begin; run < end; ++run) {
        const auto first = static_cast<std::size_t>(run * kGrain);
        const auto count = static_cast<std::size_t>(std::min(kGrain, numel - run * kGrain));
        found[static_cast<std::size_t>(run)] = quantize::extremes(as_floats(from, first, count, wide));
      }
    });
    quantize::Extremes all = found[0];
    for (const quantize::Extremes& one : found) all = {std::min(all.low, one.low), std::max(all.high, one.high)};
    return all;
  }

  /// Elements as float32: where they lie, or widened in `wide`.
  static std::span<const float> as_floats(const sdk::Values& from, std::size_t first, std::size_t count,
                                          std::vector<float>& wide) {
    if (from.dtype == sdk::Dtype::kFloat32) return {static_cast<const float*>(from.data) + first, count};
    for (std::size_t i = 0; i < count; ++i) wide[i] = sdk::value_at(from, first + i);
    return {wide.data(), count};
  }

  /// Quantises runs of `run` elements, each with the grid that `grid_for` gives.
  template <class GridFor>
  static void quantise(const sdk::Values& from, const sdk::Values& to, std::int64_t numel, std::int64_t run,
                       GridFor&& grid_for) {
    const bool plain = from.dtype == sdk::Dtype::kFloat32;
    const std::int64_t runs = (numel + run - 1) / run;
    sdk::parallel_for(0, runs, std::max<std::int64_t>(kGrain / run, 1), [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> wide(plain ? 0 : static_cast<std::size_t>(run));
      for (std::int64_t at = begin; at < end; ++at) {
        const auto first = static_cast<std::size_t>(at * run);
        const auto count = static_cast<std::size_t>(std::min(run, numel - at * run));
        const std::span<const float> x = as_floats(from, first, count, wide);
        const quantize::Grid grid = grid_for(x);
        float* const made = plain ? static_cast<float*>(to.data) + first : wide.data();
        if (grid.scale > 0) {
          quantize::to_grid(x, grid, made);
        } else {
          std::copy(x.begin(), x.end(), made);  // a range of one value has no grid
        }
        for (std::size_t i = 0; i < count && !plain; ++i) sdk::set_value_at(to, first + i, made[i]);
      }
    });
  }

  std::vector<GroupScope> scopes_;
  std::vector<int> bits_;  // one a group
  std::int64_t offset_ = 0;
  bool symmetric_ = true, static_ = true;
  std::map<std::string, Input, std::less<>> inputs_;  // by the module's path
};

}  // namespace
}  // namespace capstan::compression

CAPSTAN_PLUGIN(&capstan::sdk::compression<capstan::compression::ActivationQuantization, "activation_quantization">)
