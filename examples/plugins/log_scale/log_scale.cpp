// Weights as powers of two: -2^e, 0 or 2^e, where e is one of the `levels` exponents up to that of the row's largest
// weight.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <regex>
#include <string>
#include <vector>

#include "capstan/sdk/compression.hpp"
#include "capstan/sdk/quantize.hpp"

namespace {

namespace sdk = capstan::sdk;

/// The exponent of the power of two next to a magnitude above 0, next by ratio, and one that float32 has.
int exponent_of(double magnitude) {
  int exponent = 0;
  const double fraction = std::frexp(magnitude, &exponent);  // in [0.5, 1)
  return std::min(fraction < M_SQRT1_2 ? exponent - 1 : exponent, 127);
}

/// The exponents of a row: values are whole multiples of 2^low.
class Scale {
 public:
  Scale(double largest, int levels)
      : high_(largest > 0 ? exponent_of(largest) : levels - 1), low_(std::max(high_ - levels + 1, -126)) {}

  float step() const { return std::ldexp(1.0f, low_); }
  /// The multiple of step() that stands for a finite value: 0, or a power of two with a sign.
  std::int32_t code(float value) const {
    const float magnitude = std::fabs(value);
    if (magnitude < step() / 2) return 0;
    const int exponent = std::clamp(exponent_of(magnitude), low_, high_);
    return (value < 0 ? -1 : 1) * (1 << (exponent - low_));
  }

 private:
  int high_, low_;
};

class LogScale {
 public:
  LogScale(const sdk::Host&, const sdk::Params& params)
      : levels_(static_cast<int>(params.integer("levels"))), first_update_(params.integer("first_update")) {
    for (const std::string& one : params.texts("modules")) {
      try {
        modules_.emplace_back(one);
      } catch (const std::regex_error& error) {
        throw sdk::Error("modules: '" + one + "' is no regular expression: " + error.what());
      }
    }
  }

  sdk::CompressionPlan plan(const sdk::ModelTable& model) {
    sdk::CompressionPlan plan;
    for (const sdk::ModelModule& module : model.modules) {
      const auto* weight = module.find("weight");
      if (weight == nullptr || weight->shape.size() < 2 || !weight->trained || !selects(module.path)) continue;
      sdk::CompressionPlan::Parameter planned;
      planned.name = module.full_name("weight");
      planned.groups = static_cast<std::uint64_t>(weight->shape[0]);  // a row, or an output channel
      planned.measures = {{sdk::Join::kMax}};
      planned.bits = levels_ <= 7 ? levels_ + 1 : 0;  // codes are -2^k, 0 and 2^k with k < levels
      plan.parameters.push_back(planned);
    }
    if (plan.parameters.empty()) {
      plan.warnings.push_back("log_scale: `modules` matches no module that has a weight of two dimensions or more.");
    }
    plan.report.push_back("log_scale: " + std::to_string(plan.parameters.size()) + " of " +
                          std::to_string(model.modules.size()) + " modules, " + std::to_string(levels_) + " levels");
    return plan;
  }

  bool active(std::int64_t updates) const { return updates >= first_update_; }

  void measure(const sdk::CompressedPiece& piece, unsigned, double* partials) const {
    piece.parallel_segments([&](std::size_t segment, std::size_t, std::size_t begin, std::size_t end) {
      partials[segment] = sdk::quantize::largest_magnitude(piece.input().subspan(begin, end - begin));
    });
  }

  void transform(const sdk::CompressedPiece& piece, std::int64_t, std::span<float> values) const {
    piece.parallel_segments([&](std::size_t, std::size_t group, std::size_t begin, std::size_t end) {
      const double largest = piece.statistics(group, 1)[0];
      if (!std::isfinite(largest)) {  // the whole row is lost, for the engine to find
        std::fill_n(values.data() + begin, end - begin, std::numeric_limits<float>::quiet_NaN());
        return;
      }
      const Scale scale(largest, levels_);
      for (std::size_t i = begin; i < end; ++i) {
        values[i] = static_cast<float>(scale.code(piece.input()[i])) * scale.step();
      }
    });
  }

  void encode(const sdk::CompressedPiece& piece, std::int64_t, const sdk::Codes& to) const {
    piece.for_each_group([&](std::size_t group, std::size_t begin, std::size_t end) {
      const double largest = piece.statistics(group, 1)[0];
      if (!std::isfinite(largest)) {
        to.scales[group] = std::numeric_limits<float>::quiet_NaN();
        std::fill_n(to.codes.data() + begin, end - begin, std::int8_t{0});
        return;
      }
      const Scale scale(largest, levels_);
      to.scales[group] = scale.step();
      for (std::size_t i = begin; i < end; ++i) {
        to.codes[i] = static_cast<std::int8_t>(scale.code(piece.input()[i]));
      }
    });
  }

 private:
  bool selects(const std::string& path) const {
    return std::any_of(modules_.begin(), modules_.end(),
                       [&](const std::regex& one) { return std::regex_search(path, one); });
  }

  int levels_;
  std::int64_t first_update_;
  std::vector<std::regex> modules_;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::compression<LogScale, "log_scale">)
