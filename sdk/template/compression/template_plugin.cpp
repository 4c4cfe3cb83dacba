#include "template_plugin.hpp"

#include <capstan/sdk/compression.hpp>
#include <regex>

namespace {

namespace sdk = capstan::sdk;

class TemplatePlugin {
 public:
  // Parameters were checked against plugin.toml; check here only what it cannot say.
  TemplatePlugin(const sdk::Host&, const sdk::Params& params)
      : bits_(static_cast<int>(params.integer("bits"))),
        schedule_offset_(params.integer("schedule_offset")),
        modules_(params.texts("modules")) {}

  /// What is not named here costs nothing.
  sdk::CompressionPlan plan(const sdk::ModelTable& model) {
    sdk::CompressionPlan plan;
    for (const sdk::ModelModule& module : model.modules) {
      const auto* weight = module.find("weight");
      if (weight == nullptr || weight->shape.size() != 2 || !weight->trained || !selects(module.path)) continue;
      sdk::CompressionPlan::Parameter planned;
      planned.name = module.full_name("weight");
      planned.groups = static_cast<std::uint64_t>(weight->shape[0]);  // a group a row
      planned.measures = {{sdk::Join::kMax}};                         // one round, of one number
      planned.bits = bits_;
      plan.parameters.push_back(planned);
    }
    plan.report.push_back("TemplatePlugin: " + std::to_string(plan.parameters.size()) + " weights, " +
                          std::to_string(bits_) + " bits");
    return plan;
  }

  bool active(std::int64_t updates) { return updates >= schedule_offset_; }

  /// The engine joins what the segments give, over the parameter and over all ranks.
  void measure(const sdk::CompressedPiece& piece, unsigned, double* partials) {
    piece.for_each_segment([&](std::size_t segment, std::size_t, std::size_t begin, std::size_t end) {
      float largest = 0.0f;
      for (std::size_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(piece.input()[i]));
      partials[segment] = largest;
    });
  }

  /// A piece may be any part of a parameter, and `values` may be its input: look at no other element.
  void transform(const sdk::CompressedPiece& piece, std::int64_t, std::span<float> values) {
    piece.for_each_group([&](std::size_t group, std::size_t begin, std::size_t end) {
      const float scale = template_plugin_scale(piece.statistics(group, 1)[0], bits_);
      for (std::size_t i = begin; i < end; ++i) {
        values[i] = static_cast<float>(template_plugin_code(piece.input()[i], scale, bits_)) * scale;
      }
    });
  }

  /// The same values as codes: (code - zero point) * scale.
  void encode(const sdk::CompressedPiece& piece, std::int64_t, const sdk::Codes& to) {
    piece.for_each_group([&](std::size_t group, std::size_t begin, std::size_t end) {
      to.scales[group] = template_plugin_scale(piece.statistics(group, 1)[0], bits_);
      for (std::size_t i = begin; i < end; ++i) {
        to.codes[i] = static_cast<std::int8_t>(template_plugin_code(piece.input()[i], to.scales[group], bits_));
      }
    });
  }

 private:
  bool selects(const std::string& path) const {
    return std::any_of(modules_.begin(), modules_.end(),
                       [&](const std::string& one) { return std::regex_search(path, std::regex(one)); });
  }

  int bits_;
  std::int64_t schedule_offset_;
  std::vector<std::string> modules_;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::compression<TemplatePlugin, "TemplatePlugin">)
