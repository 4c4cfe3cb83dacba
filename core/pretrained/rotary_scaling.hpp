#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/text/json.hpp"

namespace capstan {

/// How Llama 3.1 scales the frequencies of rotary positions (transformers, modeling_rope_utils,
/// _compute_llama3_parameters): wavelengths above original_length / low_freq_factor are `factor` times as long, those
/// below original_length / high_freq_factor stay, and those between are interpolated.
struct Llama3Scaling {
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  std::int64_t original_length = 8192;  // tokens
};

/// The numbers of a config.json that rotary positions need, in the keys of transformers 4 (rope_theta, rope_scaling),
/// which come first as in the decoder, or 5 (rope_parameters).
struct RotaryKeys {
  std::string type = "default";  // rope_type
  double theta = 10000, factor = 1;
  double partial_rotary_factor = 1;  // of a head's dimensions, the part that turns
  double local_theta = 10000;        // of Gemma 3's layers with a window
  Llama3Scaling llama3;
};

/// Throws RuntimeFault naming a key whose value is of another type.
RotaryKeys rotary_keys(const Json& config);

/// By how much each frequency theta^(-2i / head_size) is divided: head_size / 2 numbers.
std::vector<float> llama3_divisors(const Llama3Scaling& scaling, double theta, std::int64_t head_size);

/// The scaling that has these divisors, with the low_freq_factor and high_freq_factor of all Llama 3.1, 3.2 and 3.3,
/// and an original_length that is a power of two; nothing where there is none.
std::optional<Llama3Scaling> llama3_scaling(const std::vector<float>& divisors, double theta);

}  // namespace capstan
