#include "init.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <string>
#include <vector>

namespace capstan::models {
namespace {

bool ends_residual_branch(std::string_view name) {
  return name.ends_with("attn.proj.weight") || name.ends_with("mlp.proj.weight");
}

/// Biases and LayerNorm weights are the parameters of one dimension; nothing else here is.
bool set_constant(std::string_view name, at::Tensor& parameter) {
  if (parameter.dim() != 1) return false;
  parameter.fill_(name.ends_with(".bias") ? 0.0 : 1.0);
  return true;
}

std::uint64_t fnv1a64(std::string_view text) {
  std::uint64_t hash = 0xCBF29CE484222325;
  for (const char byte : text) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001B3;
  return hash;
}

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;

std::uint64_t splitmix64(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

at::Tensor formula_values(at::IntArrayRef shape, std::uint64_t stream, float bound) {
  at::Tensor values = at::empty(shape, at::kFloat);
  float* out = values.data_ptr<float>();
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    const auto top = static_cast<float>(splitmix64(stream + (static_cast<std::uint64_t>(i) + 1) * kGolden) >> 40);
    // 24 bits, so everything but the last product is exact.
    out[i] = (top * 0x1p-23f - 1.0f) * bound;
  }
  return values;
}

}  // namespace

void initialize_normal(const NamedParameters& parameters, std::int64_t layers) {
  const at::NoGradGuard no_grad;
  for (const auto& item : parameters) {
    at::Tensor parameter = item.value();
    if (set_constant(item.key(), parameter)) continue;
    const double scale = ends_residual_branch(item.key()) ? std::sqrt(2.0 * static_cast<double>(layers)) : 1.0;
    parameter.normal_(0.0, 0.02 / scale);
  }
}

void initialize_formula(const NamedParameters& parameters, std::int64_t layers, std::uint64_t seed) {
  const at::NoGradGuard no_grad;
  for (const auto& item : parameters) {
    at::Tensor parameter = item.value();
    if (set_constant(item.key(), parameter)) continue;
    const double scale = ends_residual_branch(item.key()) ? std::sqrt(2.0 * static_cast<double>(layers)) : 1.0;
    parameter.copy_(
        formula_values(parameter.sizes(), fnv1a64(item.key()) ^ (seed * kGolden), static_cast<float>(0.04 / scale)));
  }
}

}  // namespace capstan::models
