#include "sdk/conformance/beside_cases.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "core/errors.hpp"
#include "sdk/conformance/optimizer_under_test.hpp"

namespace capstan::conformance {
namespace {

constexpr std::size_t kElements = 1020;  // no multiple of a vector's width; where the optimizer takes matrices, 34 x 30
constexpr int kUpdates = 10;
/// Where sums are taken in another order: of a weight, or of 1 where the weight is less.
constexpr double kBound = 1e-5;

std::string digits(float value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", static_cast<double>(value));
  return text;
}

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

bool close(float a, float b) {
  return same_bits(a, b) || std::fabs(a - b) <= kBound * std::max(1.0, std::fabs(static_cast<double>(b)));
}

/// The parameters of the build for the CPU, with the device's values where both have one.
Json params_of_both(const ComponentManifest& component, const ComponentManifest& cpu) {
  const Json wanted = default_params(component);
  Json params = default_params(cpu);
  for (const auto& [name, value] : wanted.as_object()) {
    if (params.find(name)) params[name] = value;
  }
  return params;
}

void check_dtype(const Context& context, const ComponentManifest& component, const CpuBuild& cpu,
                 c10::ScalarType dtype) {
  const Context on_cpu{cpu.plugin, context.seed, ""};
  auto random = context.random();
  OptimizerUnderTest there(context, component),
      here(on_cpu, cpu.component, params_of_both(component, cpu.component), nullptr, 1);
  const auto values = random_values(random, kElements);
  Piece moved(component, there.numbers, "w", values, {.grad_dtype = dtype}),
      wanted(cpu.component, here.numbers, "w", values, {.grad_dtype = dtype});
  const bool exact = component.has_trait("elementwise");
  for (int update = 0; update < kUpdates; ++update) {
    const auto gradients = random_values(random, kElements);
    moved.set_grad(gradients);
    wanted.set_grad(gradients);
    there.update({&moved}, 0.5);
    here.update({&wanted}, 0.5);
    const auto found = moved.param(), expected = wanted.param();
    for (std::size_t i = 0; i < kElements; ++i) {
      expect(exact ? same_bits(found[i], expected[i]) : close(found[i], expected[i]),
             "with gradients of " + std::string(c10::toString(dtype)) + ", element " + std::to_string(i) +
                 " after update " + std::to_string(update) + " is " + digits(found[i]) + " on the device and " +
                 digits(expected[i]) + " on the CPU.");
    }
  }
}

void check_beside(const Context& context, const ComponentManifest& component, const CpuBuild& cpu) {
  if (component.has_trait("own_communication")) throw Skip("its updates need several ranks.");
  for (const c10::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    check_dtype(context, component, cpu, dtype);
}

}  // namespace

CpuBuild cpu_build(const std::filesystem::path& plugin, const std::string& type) {
  for (const ComponentManifest& component : read_plugin(plugin).manifest.components) {
    if (component.kind != "optimizer" || component.type != type || !component.runs_on("cpu")) continue;
    CpuBuild build{std::filesystem::absolute(plugin), component};
    build.component.device = "cpu";
    return build;
  }
  throw ConfigError("--beside " + plugin.string() + ": has no optimizer '" + type +
                    "' for the CPU. Name the file of the build for the CPU.");
}

Cases beside_cases(const ComponentManifest& component, const CpuBuild& cpu) {
  const bool exact = component.has_trait("elementwise");
  return {{"optimizer/" + component.type + "/beside_cpu",
           exact ? "An update on the device gives the bits of the build for the CPU."
                 : "An update on the device differs from the build for the CPU by at most 1e-5 of a weight, or of 1.",
           [component, cpu](const Context& context) { check_beside(context, component, cpu); }}};
}

}  // namespace capstan::conformance
