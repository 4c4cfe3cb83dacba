#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "capstan/sdk/collectives.hpp"
#include "capstan/sdk/compression.hpp"
#include "capstan/sdk/floats.hpp"
#include "capstan/sdk/parallel.hpp"
#include "capstan/sdk/quantize.hpp"
#include "module_scope.hpp"
#include "running_range.hpp"

namespace capstan::compression {
namespace {

namespace quantize = sdk::quantize;

const std::string kSection = "compression_training.activation_quantization";
constexpr std::int64_t kGrain = 32768;  // elements that are worth a thread

/// Inputs of layers, rounded to few bits. Keys: the section compression_training.activation_quantization.
class ActivationQuantization {
 public:
  ActivationQuantization(sdk::Host host, const sdk::Params& params)
      : host_(host), scopes_(read_scopes(params, kSection)) {
    offset_ = params.integer("/shared_parameters/schedule_offset");
    symmetric_ = params.text("/shared_parameters/quantization_type") == "symmetric";
    static_ = params.text("/shared_parameters/range_calibration") == "static";
    for (const GroupScope& scope : scopes_) {
      const std::int64_t bits =
          params.integer("/different_groups/" + sdk::Params::escaped(scope.name) + "/params/bits");
      if (bits != 4 && bits != 8) {
        throw sdk::Error(scope.where + ".params.bits: must be 4 or 8, got " + std::to_string(bits) + ".");
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
      }
      plan.report.push_back(report_line("activation_quantization", scopes_[i], chosen.of_group[i],
                                        static_cast<std::size_t>(of), bits_[i]));
    }
    return plan;
  }

  bool active(std::int64_t updates) const { return updates >= offset_; }

  void operand(std::string_view module, capstan_tensor input, std::int64_t, bool training, capstan_tensor out) {
    Input& layer = inputs_.find(module)->second;
    const sdk::Values from = sdk::values_of(input), to = sdk::values_of(out);
    if (!sdk::on_cpu(input) || !from.is_float()) {
      throw sdk::Error("quantises float32, bfloat16 and float16 activations in host memory; this input is " +
                       (sdk::on_cpu(input) ? sdk::dtype_name(input) : std::string("on another device")) + ".");
    }
    const std::span<const std::int64_t> shape = sdk::shape_of(input);
    const std::int64_t numel = sdk::numel_of(input);
    if (numel == 0) return;
    if (static_) {
      if (training) {
        const quantize::Extremes found = extremes_of(from, numel);
        layer.range.observe(found.low, found.high);
      }
      const quantize::Grid grid =
          grid_of(static_cast<float>(layer.range.low()), static_cast<float>(layer.range.high()), layer.bits);
      return quantise(from, to, numel, kGrain, [&](std::span<const float>) { return grid; });
    }
    // A group a token for linear layers, one an image for convolutions.
    const std::int64_t group = layer.convolution ? numel / std::max<std::int64_t>(shape[0], 1) : shape.back();
    quantise(from, to, numel, group, [&](std::span<const float> x) {
      const quantize::Extremes found = quantize::extremes(x);
      return grid_of(found.low, found.high, layer.bits);
    });
  }

  /// The range of a step is that of all ranks' micro-batches: each smallest and largest value joined over the ranks.
  void settle(std::int64_t, const sdk::Collectives& ranks) {
    std::vector<double> mine;
    for (const auto& [path, layer] : inputs_) {
      const std::vector<double>& observed = layer.range.observed();
      mine.insert(mine.end(), observed.begin(), observed.end());
    }
    const auto count = static_cast<std::int64_t>(mine.size());
    std::vector<std::int64_t> counts(host_.world_size());
    ranks.all_gather<std::int64_t>({&count, 1}, counts);
    if (std::any_of(counts.begin(), counts.end(), [&](std::int64_t other) { return other != count; })) {
      throw sdk::Error("ranks have run different numbers of micro-batches in this step; load a checkpoint.");
    }
    if (mine.empty()) return;
    std::vector<double> all(mine.size() * host_.world_size());
    ranks.all_gather<double>(mine, all);
    std::size_t at = 0;
    for (auto& [path, layer] : inputs_) {
      std::vector<double> joined = layer.range.observed();
      for (std::size_t k = 0; k < joined.size(); ++k) {
        for (std::size_t rank = 0; rank < host_.world_size(); ++rank) {
          const double other = all[rank * mine.size() + at + k];
          joined[k] = k % 2 == 0 ? std::min(joined[k], other) : std::max(joined[k], other);
        }
      }
      at += joined.size();
      layer.range.settle(joined);
    }
  }

  void save(const sdk::Sink& sink) const {
    std::string text = "{\"ranges\": {";
    for (const auto& [path, layer] : inputs_) {
      char numbers[80];
      std::snprintf(numbers, sizeof numbers, "[%.17g, %.17g]", layer.range.settled_low(), layer.range.settled_high());
      text += (text.back() == '{' ? "\"" : ", \"") + path + "\": " + numbers;
    }
    sink.write(text + "}}");
  }

  void load(const sdk::Document& saved) {
    for (auto& [path, layer] : inputs_) {
      const std::vector<double> range = saved.numbers("/ranges/" + sdk::Document::escaped(path));
      if (range.empty()) {
        layer.range.set(0, 0);
      } else if (range.size() == 2) {
        layer.range.set(range[0], range[1]);
      } else {
        throw sdk::Error("the saved range of '" + path + "' must be two numbers.");
      }
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

  static quantize::Extremes extremes_of(const sdk::Values& from, std::int64_t numel) {
    if (from.dtype == sdk::Dtype::kFloat32) {
      return quantize::extremes({static_cast<const float*>(from.data), static_cast<std::size_t>(numel)});
    }
    quantize::Extremes found{sdk::value_at(from, 0), sdk::value_at(from, 0)};
    for (std::int64_t i = 1; i < numel; ++i) {
      const float x = sdk::value_at(from, static_cast<std::size_t>(i));
      found = {std::min(found.low, x), std::max(found.high, x)};
    }
    return found;
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
        if (plain) {
          const std::span<const float> x(static_cast<const float*>(from.data) + first, count);
          quantize::to_grid(x, grid_for(x), static_cast<float*>(to.data) + first);
          continue;
        }
        const std::span<float> x(wide.data(), count);
        for (std::size_t i = 0; i < count; ++i) x[i] = sdk::value_at(from, first + i);
        quantize::to_grid(x, grid_for(x), x.data());
        for (std::size_t i = 0; i < count; ++i) sdk::set_value_at(to, first + i, x[i]);
      }
    });
  }

  sdk::Host host_;
  std::vector<GroupScope> scopes_;
  std::vector<int> bits_;  // one a group
  std::int64_t offset_ = 0;
  bool symmetric_ = true, static_ = true;
  std::map<std::string, Input, std::less<>> inputs_;  // by the module's path
};

}  // namespace
}  // namespace capstan::compression

CAPSTAN_PLUGIN(&capstan::sdk::compression<capstan::compression::ActivationQuantization, "activation_quantization">)
