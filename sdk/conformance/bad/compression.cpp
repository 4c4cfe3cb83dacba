// Weights of 4 bits a row and inputs of operators within a running range, and every way to get it wrong.
#include "capstan/sdk/compression.hpp"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>

#include "bad.hpp"
#include "creation.hpp"

namespace {

namespace sdk = capstan::sdk;

constexpr int kBits = 4, kMost = 7;

std::string exact(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

class Bad {
 public:
  Bad(const sdk::Host&, const sdk::Params& params) { create_badly(params); }

  sdk::CompressionPlan plan(const sdk::ModelTable& model) {
    static int plans = 0;
    sdk::CompressionPlan plan;
    for (const sdk::ModelModule& module : model.modules) {
      const auto* weight = module.find("weight");
      if (weight == nullptr || weight->shape.size() < 2 || (!weight->trained && !breaks("plan_frozen"))) continue;
      const auto rows = static_cast<std::uint64_t>(weight->shape[0]);
      plan.parameters.push_back({module.full_name("weight"),
                                 breaks("plan_groups") ? 7 : rows,
                                 {{sdk::Join::kMax}},
                                 breaks("plan_bits") ? 9 : kBits,
                                 false,
                                 {sdk::CompressionPlan::State::whole("first", sdk::Dtype::kFloat32, rows),
                                  sdk::CompressionPlan::State::trained("shares", {weight->shape[0], 1}, 1)},
                                 "",
                                 true});
      if (module.class_name != "torch.nn.Embedding") plan.operands.push_back(module.path);
    }
    if (breaks("plan")) plan.report.push_back("plan " + std::to_string(++plans));
    if (breaks("plan_operand")) plan.operands.push_back("nowhere");
    return plan;
  }

  bool active(std::int64_t updates) { return !breaks("active") || ++asked_ % 2 == 0 || updates < 0; }

  void measure(const sdk::CompressedPiece& piece, unsigned, double* partials) {
    if (breaks("writes_measure")) const_cast<float&>(piece.input()[0]) = 1;
    if (breaks("measure_beyond")) partials[piece.segment_count()] = 0;
    piece.for_each_segment([&](std::size_t segment, std::size_t, std::size_t begin, std::size_t end) {
      if (!breaks("writes_no_measure")) partials[segment] = largest(piece, begin, end);
    });
    if (breaks("statistics")) measured_ = partials[0];
  }

  void transform(const sdk::CompressedPiece& piece, std::int64_t, std::span<float> values) {
    leak_in_call();
    if (breaks("writes_input")) const_cast<float&>(piece.input()[0]) = 1;
    if (breaks("writes_beyond")) values.data()[values.size()] = 1;
    if (breaks("in_place")) std::fill(values.begin(), values.end(), 0.0f);
    piece.for_each_group([&](std::size_t group, std::size_t begin, std::size_t end) {
      const float scale = scale_of(piece, group, begin, end);
      for (std::size_t i = begin; i < end; ++i) {
        values[i] = static_cast<float>(code_of(piece.input()[i], scale)) * scale;
      }
    });
    if (breaks("writes")) values.back() = std::nanf("");
  }

  /// The first value of each row that begins here.
  void prepare(std::span<const sdk::CompressedPiece> pieces, std::int64_t, bool, const sdk::PieceRanks&) {
    for (const sdk::CompressedPiece& piece : pieces) {
      const std::span<float> first = piece.state<float>(0);
      for (std::size_t row = 0; row < first.size(); ++row) first[row] = piece.input()[row * piece.group_size()];
      if (breaks("states")) first[0] += static_cast<float>(++asked_);
    }
  }

  void gradient(std::span<const sdk::CompressedPiece> pieces, std::int64_t, const sdk::PieceRanks&) {
    for (const sdk::CompressedPiece& piece : pieces) {
      const std::span<float> shares = piece.state_gradient(1);
      std::copy_n(piece.gradient().begin(), shares.size(), shares.begin());
      if (breaks("gradient_left_out")) shares[0] = std::nanf("");
      if (breaks("gradient")) piece.gradient()[0] += 1;
    }
  }

  void encode(const sdk::CompressedPiece& piece, std::int64_t, const sdk::Codes& to) {
    piece.for_each_group([&](std::size_t group, std::size_t begin, std::size_t end) {
      to.scales[group] = scale_of(piece, group, begin, end);
      if (breaks("codes_zero")) to.zero_points[group] = 1;
      for (std::size_t i = begin; i < end; ++i) {
        to.codes[i] = static_cast<std::int8_t>(code_of(piece.input()[i], to.scales[group]));
        if (breaks("codes")) to.codes[i] = static_cast<std::int8_t>(to.codes[i] - 1);
        if (breaks("codes_range")) to.codes[i] = 8;
      }
    });
  }

  /// Clamps float32 to the range of the last step; what has 16 bits stays as it is.
  void operand(std::string_view module, capstan_tensor input, std::int64_t, bool training, capstan_tensor out) {
    leak_in_call("operand_leak");
    const sdk::Values from = sdk::values_of(input), to = sdk::values_of(out);
    const auto count = static_cast<std::size_t>(sdk::numel_of(input));
    std::memcpy(to.data, from.data, count * (from.dtype == sdk::Dtype::kFloat32 ? 4 : 2));
    if (breaks("operands_input")) std::memset(from.data, 0x11, 2);
    if (from.dtype != sdk::Dtype::kFloat32) return;
    const std::span<float> values(static_cast<float*>(to.data), count);
    float most = 0;
    for (const float value : values) most = std::max(most, std::fabs(value));
    const std::string name(module);
    if (training) next_[name] = std::max(next_[name], double{most});
    if (breaks("evaluation")) range_[name] = std::max(range_[name], double{most});
    const auto known = range_.find(name);
    const float limit = known == range_.end() || known->second == 0 ? most : static_cast<float>(known->second);
    for (float& value : values) value = std::clamp(value, -limit, limit);
    if (breaks("operands")) values[0] = std::nanf("");
    if (breaks("evaluation_values") && !training) values[0] += static_cast<float>(++asked_);
    if (breaks("settle_first") && !training && range_.empty()) values[0] = std::nanf("");
    if (breaks("operands_beyond")) values.data()[-1] = 0;
  }

  void settle(std::int64_t, const sdk::Collectives& ranks) {
    if (breaks("settle") && next_.empty()) throw sdk::Error("nothing was seen.");
    for (auto& [module, most] : next_) {
      if (!breaks("ranks_agree")) ranks.all_reduce_sum(std::span(&most, 1));
      range_[module] = most / static_cast<double>(ranks.world_size());
      if (breaks("state_forgets")) range_[module] /= 1 + ++asked_;
    }
    next_.clear();
  }

  void save(const sdk::Sink& sink) {
    std::string text = "{\"range\": {" + members(range_) + "}, \"next\": {";
    if (!breaks("state_step")) text += members(next_);
    text += "}";
    if (breaks("state_text")) text += ", \"saved\": " + std::to_string(++asked_);
    sink.write(breaks("state_json") ? text : text + "}");
  }
  void load(const sdk::Document& saved) {
    if (breaks("state_round_trip")) return;
    for (auto& [name, map] : {std::pair("/range", &range_), {"/next", &next_}}) {
      map->clear();
      for (const std::string& module : saved.names(name)) (*map)[module] = saved.number(name + ("/" + module));
    }
  }

 private:
  static std::string members(const std::map<std::string, double>& map) {
    std::string text;
    for (const auto& [module, most] : map) {
      text += (text.empty() ? "\"" : ", \"") + module + "\": " + (breaks("state_rounded") ? "1" : exact(most));
    }
    return text;
  }

  static double largest(const sdk::CompressedPiece& piece, std::size_t begin, std::size_t end) {
    float most = 0;
    for (std::size_t i = begin; i < end; ++i) most = std::max(most, std::fabs(piece.input()[i]));
    return most;
  }

  float scale_of(const sdk::CompressedPiece& piece, std::size_t group, std::size_t begin, std::size_t end) const {
    double most = piece.statistics(group, 1)[0];
    if (breaks("pieces")) most = largest(piece, begin, end);
    if (breaks("statistics") && measured_ > 0) most = measured_;
    const float scale = static_cast<float>(most / kMost);
    return scale > 0 ? scale : breaks("finite") ? std::nanf("") : 1.0f;
  }

  static int code_of(float value, float scale) {
    return static_cast<int>(std::clamp(std::nearbyint(value / scale), -kMost - 1.0f, float{kMost}));
  }

  std::map<std::string, double> range_, next_;
  double measured_ = 0;
  int asked_ = 0;
};

/// Plans for functions that it has not.
class BadBare {
 public:
  BadBare(const sdk::Host&, const sdk::Params&) {}
  sdk::CompressionPlan plan(const sdk::ModelTable&) { return {{{"conv.weight", 32, {}, 0, false}}, {}, {}, {}}; }
};

/// A slip that the C++ layer makes impossible.
capstan_status raw_plan(void* self, capstan_str model, capstan_sink* sink, capstan_error* error) {
  if (!breaks("plan_json")) return sdk::CompressionThunks<Bad>::plan(self, model, sink, error);
  static_cast<sdk::Instance<Bad>*>(self)->host->sink_write(sink, sdk::to_str("{\"parameters\": ["));
  return CAPSTAN_OK;
}
constexpr capstan_compression raw_table() {
  capstan_compression table = sdk::CompressionThunks<Bad>::kVtable;
  table.plan = &raw_plan;
  return table;
}
constexpr capstan_compression kTable = raw_table();

constexpr capstan_component kBad = with_raw_create<Bad>(sdk::describe<Bad, "compression", "Bad">(&kTable));

}  // namespace

CAPSTAN_PLUGIN(&kBad, &sdk::compression<BadBare, "BadBare">)
