#include "core/pretrained/rotary_scaling.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/errors.hpp"

namespace capstan {
namespace {

double number_of(const Json& object, const char* key, double otherwise) {
  const Json* value = object.find(key);
  if (value == nullptr || value->is_null()) return otherwise;
  if (value->is_number() && value->as_number() > 0 && std::isfinite(value->as_number())) return value->as_number();
  throw RuntimeFault("the model's config.json: " + std::string(key) + " must be a positive number, got " +
                     value->dump() + ".");
}

const Json* object_of(const Json& config, const char* key) {
  const Json* value = config.find(key);
  if (value == nullptr || value->is_null()) return nullptr;
  if (!value->is_object()) {
    throw RuntimeFault("the model's config.json: " + std::string(key) + " must be an object, got " + value->dump() +
                       ".");
  }
  return value;
}

std::string type_of(const Json& scaling) {
  for (const char* key : {"rope_type", "type"}) {
    const Json* type = scaling.find(key);
    if (type != nullptr && type->is_string()) return type->as_string();
  }
  return "default";
}

}  // namespace

RotaryKeys rotary_keys(const Json& config) {
  RotaryKeys keys;
  const Json* model_type = config.find("model_type");
  const auto is = [&](const char* type) { return model_type != nullptr && *model_type == Json(type); };
  if (is("stablelm")) keys.partial_rotary_factor = 0.25;  // the defaults of their classes in transformers
  if (is("gemma3_text")) keys.theta = 1e6;
  keys.theta = number_of(config, "rope_theta", keys.theta);
  keys.local_theta = number_of(config, "rope_local_base_freq", keys.local_theta);
  keys.partial_rotary_factor = number_of(config, "partial_rotary_factor", keys.partial_rotary_factor);
  const Json* scaling = object_of(config, "rope_scaling");
  if (scaling == nullptr) scaling = object_of(config, "rope_parameters");
  if (scaling == nullptr) return keys;
  if (const Json* local = object_of(*scaling, "sliding_attention")) {
    keys.local_theta = number_of(*local, "rope_theta", keys.local_theta);
  }
  if (const Json* whole = object_of(*scaling, "full_attention")) scaling = whole;
  keys.partial_rotary_factor = number_of(*scaling, "partial_rotary_factor", keys.partial_rotary_factor);
  keys.type = type_of(*scaling);
  keys.theta = number_of(*scaling, "rope_theta", keys.theta);
  keys.factor = number_of(*scaling, "factor", keys.factor);
  Llama3Scaling& llama3 = keys.llama3;
  llama3.factor = keys.factor;
  llama3.low_freq_factor = number_of(*scaling, "low_freq_factor", llama3.low_freq_factor);
  llama3.high_freq_factor = number_of(*scaling, "high_freq_factor", llama3.high_freq_factor);
  llama3.original_length = static_cast<std::int64_t>(std::min(
      number_of(*scaling, "original_max_position_embeddings", static_cast<double>(llama3.original_length)), 1e15));
  return keys;
}

std::vector<float> llama3_divisors(const Llama3Scaling& scaling, double theta, std::int64_t head_size) {
  const auto original = static_cast<double>(scaling.original_length);
  const double longest = original / scaling.low_freq_factor, shortest = original / scaling.high_freq_factor;
  std::vector<float> divisors;
  for (std::int64_t i = 0; i < head_size / 2; ++i) {
    const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_size));
    const double wavelength = 2 * std::numbers::pi / frequency;
    double divisor = 1;
    if (wavelength > longest) {
      divisor = scaling.factor;
    } else if (wavelength >= shortest) {
      const double smooth =
          (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
      divisor = 1 / ((1 - smooth) / scaling.factor + smooth);
    }
    divisors.push_back(static_cast<float>(divisor));
  }
  return divisors;
}

std::optional<Llama3Scaling> llama3_scaling(const std::vector<float>& divisors, double theta) {
  if (divisors.empty()) return std::nullopt;
  Llama3Scaling scaling;
  // The last frequency is the lowest one, which the whole factor divides.
  scaling.factor = divisors.back();
  const auto size = static_cast<std::int64_t>(2 * divisors.size());
  for (scaling.original_length = 16; scaling.original_length <= 1 << 20; scaling.original_length *= 2) {
    const std::vector<float> expected = llama3_divisors(scaling, theta, size);
    const bool equal = std::equal(divisors.begin(), divisors.end(), expected.begin(), [](float found, float told) {
      return std::abs(found - told) <= 1e-4F * std::abs(told);
    });
    if (equal) return scaling;
  }
  return std::nullopt;
}

}  // namespace capstan
