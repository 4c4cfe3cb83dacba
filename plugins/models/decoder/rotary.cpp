#include "rotary.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

namespace capstan::models {
namespace {

constexpr double kPi = std::numbers::pi;

/// theta^(2i / dim), i = 0 ...: the wavelengths of the pairs of dimensions over 2 pi.
at::Tensor periods(double theta, std::int64_t dim) {
  return at::pow(at::Scalar(theta), at::arange(0, dim, 2, at::kFloat) / static_cast<double>(dim));
}

/// How many dimensions of a head turn, the first ones.
std::int64_t rotary_dim(const ConfigJson& config, const ConfigJson& rope, const DecoderShape& shape) {
  const bool is_part = shape.model_type == "phi3" || shape.model_type == "stablelm";
  const double otherwise = shape.model_type == "stablelm" ? 0.25 : 1;
  const ConfigJson& holder = rope.has("partial_rotary_factor") ? rope : config;
  const double factor = holder.positive("partial_rotary_factor", otherwise);
  if (!is_part && factor != 1) {
    holder.refuse("partial_rotary_factor", "must be 1: " + shape.model_type + " turns whole heads.");
  }
  const auto dim = static_cast<std::int64_t>(static_cast<double>(shape.head_dim) * factor);
  if (dim < 2 || dim > shape.head_dim || dim % 2 != 0) {
    holder.refuse("partial_rotary_factor", std::to_string(dim) + " of a head's " + std::to_string(shape.head_dim) +
                                               " dimensions turn by it. Their number must be even, and at least 2.");
  }
  return dim;
}

/// NTK by length. Sequences are never longer than max_position_embeddings, so that the base does not grow with them.
at::Tensor dynamic(const ConfigJson& rope, double theta, std::int64_t dim, double positions) {
  const double factor = rope.positive("factor");
  if (dim <= 2) rope.refuse("rope_type", "dynamic needs heads of more than 2 dimensions that turn.");
  const double growth =
      std::pow(factor * positions / positions - (factor - 1), static_cast<double>(dim) / static_cast<double>(dim - 2));
  return periods(theta * growth, dim).reciprocal();
}

at::Tensor llama3(const ConfigJson& rope, const at::Tensor& plain, double original) {
  const double factor = rope.positive("factor");
  const double low = rope.positive("low_freq_factor"), high = rope.positive("high_freq_factor");
  if (high <= low) rope.refuse("high_freq_factor", "must be above low_freq_factor.");
  const at::Tensor wavelength = plain.reciprocal() * (2 * kPi);
  const at::Tensor is_long = wavelength > original / low, is_short = wavelength < original / high;
  const at::Tensor stretched = at::where(is_long, plain / factor, plain);
  const at::Tensor smooth = (wavelength.reciprocal() * original - low) / (high - low);
  const at::Tensor between = (1 - smooth) * stretched / factor + smooth * stretched;
  return at::where(is_long.logical_or(is_short), stretched, between);
}

at::Tensor yarn(const ConfigJson& rope, double theta, std::int64_t dim, double original) {
  const double factor = rope.positive("factor");
  const auto dimension = [&](double rotations) {
    return static_cast<double>(dim) * std::log(original / (rotations * 2 * kPi)) / (2 * std::log(theta));
  };
  double low = dimension(rope.positive("beta_fast", 32)), high = dimension(rope.positive("beta_slow", 1));
  if (rope.flag("truncate", true)) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;
  const at::Tensor period = periods(theta, dim);
  const at::Tensor ramp = ((at::arange(dim / 2, at::kFloat) - low) / (high - low)).clamp(0, 1);
  const at::Tensor extrapolated = 1 - ramp;
  return (period * factor).reciprocal() * (1 - extrapolated) + period.reciprocal() * extrapolated;
}

/// YaRN's factor on cosines and sines.
double yarn_magnitude(const ConfigJson& rope) {
  if (rope.has("attention_factor")) return rope.positive("attention_factor");
  const double factor = rope.positive("factor");
  const auto scaled = [&](double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; };
  const double mscale = rope.number("mscale", 0), of_all = rope.number("mscale_all_dim", 0);
  return mscale != 0 && of_all != 0 ? scaled(mscale) / scaled(of_all) : scaled(1);
}

double longrope_magnitude(const ConfigJson& rope, double positions, double original) {
  if (rope.has("attention_factor")) return rope.positive("attention_factor");
  const double factor = rope.positive("factor", positions / original);
  return factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(original));
}

at::Tensor longrope(const ConfigJson& rope, const char* key, const at::Tensor& period) {
  const std::vector<double> factors = rope.numbers(key);
  if (static_cast<std::int64_t>(factors.size()) != period.numel()) {
    rope.refuse(key, "must be a list of " + std::to_string(period.numel()) +
                         " numbers, one for each pair of dimensions that turns; it has " +
                         std::to_string(factors.size()) + ".");
  }
  return (at::tensor(factors, at::kFloat) * period).reciprocal();
}

/// Frequencies on a device. The copy may end later: the values never change.
at::Tensor there(const at::Tensor& host, const at::Device& device) {
  return host.to(device, host.scalar_type(), /*non_blocking=*/true);
}

// The order of the operators, which a sum of their results would leave open, is that of transformers: backward adds up
// gradients in it, and the memory layout of a sum decides how later sums round.
at::Tensor turned_whole(const at::Tensor& x, const RotaryTable& table) {
  const std::int64_t half = x.size(-1) / 2;
  const at::Tensor straight = x * table.cos;
  const at::Tensor first = x.narrow(-1, 0, half), second = x.narrow(-1, half, half);
  return straight + at::cat({-second, first}, -1) * table.sin;
}

}  // namespace

struct Rotary::Settings {
  const ConfigJson& config;  // of the model
  const ConfigJson& rope;    // the object with rope_type and its parameters
  const DecoderShape& shape;
  double theta;
};

Rotary::Rotary(const Settings& settings) {
  const auto& [config, rope, shape, theta] = settings;
  const std::int64_t dim = rotary_dim(config, rope, shape);
  const auto positions = static_cast<double>(shape.max_positions);
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  const bool phi3 = shape.model_type == "phi3";
  const at::Tensor period = periods(theta, dim);
  // transformers prefers the number beside the object to the number in it.
  original_positions_ = config.count("original_max_position_embeddings",
                                     rope.count("original_max_position_embeddings", shape.max_positions));
  const auto original = static_cast<double>(original_positions_);

  // Phi-3 called longrope su, then yarn.
  if (type == "longrope" || (phi3 && (type == "su" || type == "yarn"))) {
    frequencies_ = longrope(rope, "short_factor", period);
    long_frequencies_ = longrope(rope, "long_factor", period);
    magnitude_ = longrope_magnitude(rope, positions, original);
  } else if (type == "default") {
    frequencies_ = period.reciprocal();
  } else if (phi3) {
    rope.refuse("rope_type", "'" + type + "' is not known of phi3. Known are default and longrope.");
  } else if (type == "linear") {
    frequencies_ = period.reciprocal() / rope.positive("factor");
  } else if (type == "dynamic") {
    frequencies_ = dynamic(rope, theta, dim, positions);
  } else if (type == "llama3") {
    frequencies_ = llama3(rope, period.reciprocal(), original);
  } else if (type == "yarn") {
    frequencies_ = yarn(rope, theta, dim, original);
    magnitude_ = yarn_magnitude(rope);
  } else {
    rope.refuse("rope_type",
                "'" + type + "' is not known. Known are default, dynamic, linear, llama3, longrope and yarn.");
  }
}

Rotary Rotary::of_full_layers(const ConfigJson& config, const DecoderShape& shape) {
  const bool gemma3 = shape.model_type == "gemma3_text";
  const ConfigJson parameters = config.object("rope_parameters");  // of transformers 5
  const bool scaled = config.has("rope_scaling");                  // of transformers 4
  const ConfigJson rope = scaled   ? config.object("rope_scaling")
                          : gemma3 ? parameters.object("full_attention")
                                   : parameters;
  for (const char* key : {"full_attention", "sliding_attention"}) {
    if (!gemma3 && rope.has(key)) rope.refuse(key, "is given, and " + shape.model_type + " has one rope_type.");
  }
  const double otherwise = gemma3 ? 1e6 : shape.model_type == "smollm3" ? 2e6 : 1e4;
  return Rotary({config, rope, shape, rope.positive("rope_theta", config.positive("rope_theta", otherwise))});
}

std::optional<Rotary> Rotary::of_windowed_layers(const ConfigJson& config, const DecoderShape& shape) {
  if (shape.model_type != "gemma3_text") return std::nullopt;
  const ConfigJson rope = config.object("rope_parameters").object("sliding_attention");
  return Rotary({config, rope, shape, rope.positive("rope_theta", config.positive("rope_local_base_freq", 1e4))});
}

RotaryTable Rotary::table(const at::Tensor& positions, std::int64_t length, at::ScalarType dtype) const {
  const bool is_long = long_frequencies_.defined() && length > original_positions_;
  const at::Tensor& host = is_long ? long_frequencies_ : frequencies_;
  return table_of(positions, there(host, positions.device()), dtype);
}

RotaryTable Rotary::table(const PackedRows& rows, at::ScalarType dtype) const {
  const at::Tensor& positions = rows.positions();
  const at::Tensor frequencies = there(frequencies_, positions.device());
  if (!long_frequencies_.defined()) return table_of(positions, frequencies, dtype);
  const at::Tensor is_long = rows.whole_lengths().unsqueeze(-1) > original_positions_;
  const at::Tensor of_long = there(long_frequencies_, positions.device());
  return table_of(positions, at::where(is_long, of_long, frequencies), dtype);
}

RotaryTable Rotary::table_of(const at::Tensor& positions, const at::Tensor& frequencies, at::ScalarType dtype) const {
  const at::Tensor half = positions.unsqueeze(-1).to(at::kFloat) * frequencies;
  const at::Tensor angles = at::cat({half, half}, -1).unsqueeze(1);
  return {(angles.cos() * magnitude_).to(dtype), (angles.sin() * magnitude_).to(dtype)};
}

at::Tensor turned(const at::Tensor& heads, const RotaryTable& table) {
  const std::int64_t dim = table.cos.size(-1), rest = heads.size(-1) - dim;
  if (rest == 0) return turned_whole(heads, table);
  return at::cat({turned_whole(heads.narrow(-1, 0, dim), table), heads.narrow(-1, dim, rest)}, -1);
}

}  // namespace capstan::models
