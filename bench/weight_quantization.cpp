// Rounding weights to few bits, beside a loop that reads the weights twice and writes them once, which is what it
// cannot do without. Both take turns on one thread; CPU time of that thread. Prints medians, ranges and ratios.
//
//   weight_quantization [--short] [elements, default 3145728]
//
// Exits with 1 where a ratio is above its bound.

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "core/compression/compressions.hpp"
#include "core/registry/host.hpp"

namespace {

using namespace capstan;

constexpr double kBound = 1.6;
constexpr std::int64_t kColumns = 1024;

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// The least that a quantiser does: the largest magnitude of a first pass scales the second.
float floor_loop(const float* from, float* to, std::int64_t count) {
  float lanes[16] = {};
  for (std::int64_t i = 0; i + 16 <= count; i += 16) {
    for (int k = 0; k < 16; ++k) lanes[k] = std::max(lanes[k], std::fabs(from[i + k]));
  }
  const float factor = 1.0f + 1e-9f * *std::max_element(lanes, lanes + 16);
  for (std::int64_t i = 0; i < count; ++i) to[i] = from[i] * factor;
  return factor;
}

struct Setting {
  const char* name;
  int bits;
  const char* type;
  std::int64_t group_size;  // 0: one group
};

Compressions quantizer(const Setting& setting, std::int64_t rows) {
  static const capstan_host host = make_host();
  const std::int64_t groups = setting.group_size > 0 ? rows * kColumns / setting.group_size : 1;
  const std::string bits = std::to_string(setting.bits);
  Compressions made;
  Json params = Json::parse(R"({"shared_parameters": {"enabled": true, "quantize_weight_in_forward": true,
    "schedule_offset": 0, "quantize_groups": )" +
                            std::to_string(groups) + R"(, "quantization_type": ")" + setting.type +
                            R"("}, "different_groups": {"wq1": {"params": {"target_bits": )" + bits +
                            R"(}, "modules": ["fc"]}}, "corrections": []})");
  Registry registry(PluginIndex::scan());
  made.add(registry.create("bench", "compression", "weight_quantization", params, &host));
  made.plan(Json::parse(R"({"seed": 1, "modules": [{"path": "fc", "class": "torch.nn.Linear", "parameters": [
    {"name": "weight", "trained": true, "shape": [)" +
                        std::to_string(rows) + ", " + std::to_string(kColumns) + "]}]}]}"));
  return made;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

/// The ratio of the two medians.
double compare(const Setting& setting, const at::Tensor& weight, int rounds) {
  Compressions made = quantizer(setting, weight.numel() / kColumns);
  const at::Tensor out = at::empty_like(weight);
  CompressedParts all;
  std::vector<CompressedPart>& parts = all.parameters;
  parts.resize(1);
  parts[0].name = "fc.weight";
  parts[0].shape = {weight.numel() / kColumns, kColumns};
  parts[0].range = {0, weight.numel()};
  parts[0].master = weight;
  parts[0].compute = at::empty_like(weight);
  std::vector<double> ours, least;
  for (int round = -1; round < rounds; ++round) {  // the first warms up
    const double begun = thread_seconds();
    made.fill("bench", all, 0, /*fresh=*/true, nullptr);
    const double between = thread_seconds();
    floor_loop(weight.const_data_ptr<float>(), out.mutable_data_ptr<float>(), weight.numel());
    const double ended = thread_seconds();
    if (round < 0) continue;
    ours.push_back(between - begun);
    least.push_back(ended - between);
  }
  std::vector<double> ratios;
  for (std::size_t i = 0; i < ours.size(); ++i) ratios.push_back(ours[i] / least[i]);
  const double ratio = median(ours) / median(least), weights = static_cast<double>(weight.numel());
  std::printf("%-28s %.2f ns a weight, the loop %.2f: ratio %.2f (%.2f to %.2f)\n", setting.name,
              median(ours) / weights * 1e9, median(least) / weights * 1e9, ratio,
              *std::min_element(ratios.begin(), ratios.end()), *std::max_element(ratios.begin(), ratios.end()));
  return ratio;
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_short = argc > 1 && std::strcmp(argv[1], "--short") == 0;
  const std::int64_t wanted = argc > 1 + is_short ? std::atoll(argv[1 + is_short]) : 3'145'728;
  const std::int64_t elements = std::max<std::int64_t>((is_short ? 65'536 : wanted) / kColumns, 1) * kColumns;
  at::set_num_threads(1);
  const at::Tensor weight = at::randn({elements}) * 0.02;
  bool met = true;
  for (const Setting& setting : {
           Setting{"8 bits, one group", 8, "symmetric", 0},
           Setting{"4 bits, groups of 1,024", 4, "symmetric", 1024},
           Setting{"4 bits, groups of 64", 4, "symmetric", 64},
           Setting{"8 bits asymmetric", 8, "asymmetric", 1024},
           Setting{"ternary", 2, "symmetric", 0},
           Setting{"binary", 1, "symmetric", 0},
       }) {
    met &= compare(setting, weight, is_short ? 3 : 25) <= kBound;
  }
  return met || is_short ? 0 : 1;
}
