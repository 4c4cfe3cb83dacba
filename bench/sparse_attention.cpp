// Sparse attention against at::scaled_dot_product_attention, of one head of 64: what a layout's density promises, and
// what of it the kernel keeps.
//
//   sparse_attention [--short] [ROUNDS]     default: 5, about three minutes
//   sparse_attention --threads              what two threads gain, alone
//
// The two take turns on one thread; each time is the least CPU time of its rounds. Density: cells that are set, of
// those that the dense call computes, of the triangle where it is causal. Held are, as speed-up x density:
//   - forward and backward at 4,096 and 8,192 tokens: 0.8 for blocks of 64 and 128 in every mode, and for blocks of 16
//   in
//     `fixed` and `bslongformer`; 0.5 for blocks of 16 where they are drawn by chance;
//   - forward at 16,384 tokens, blocks of 64: 0.8;
//   - what two threads gain, wall time: 0.9 of what the dense call gains;
//   - the peak of memory at 16,384 tokens and 4 heads: q, k, v, out, their gradients and 64 MiB.
// Windows, global and random blocks have as many tokens at every block size: 512 in a window of `bslongformer` and
// `variable`; 192, 128 and 192 in the window, the global blocks and the random ones of `bigbird`; `fixed` has the
// blocks of DeepSpeed's example. Narrower windows are shown without a bound. Exits with 1 where a bound is missed.
// --short: small tensors, whose figures say nothing.

#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/autograd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <string>

#include "bench/bound.hpp"
#include "core/attention/block_sparse.hpp"
#include "core/config/component_params.hpp"
#include "core/registry/host.hpp"

namespace {

using namespace capstan;
using capstan::bench::mark;

constexpr double kLeast = 0.8, kLeastByChance = 0.5, kLeastOfThreads = 0.9;
constexpr std::int64_t kWidth = 64, kSpareBytes = std::int64_t{64} << 20;

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}
double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Component component(const std::string& type, const Json& params) {
  static const PluginIndex plugins = PluginIndex::scan({});
  static const capstan_host host = make_host();
  static Registry registry(plugins);
  const ComponentRef found = plugins.find("attention", type);
  if (!found) throw std::runtime_error("no attention '" + type + "'");
  return registry.create("bench", "attention", type, checked_component_params(params, "bench", *found.component),
                         &host);
}

struct Setting {
  std::string mode;
  std::int64_t block = 64, tokens = 4096;
  bool causal = false;
  std::int64_t heads = 1;
  bool narrow = false;

  Json params() const {
    const auto blocks = [&](std::int64_t of_tokens) { return std::max<std::int64_t>(of_tokens / block, 1); };
    Json params = Json::object();
    params["block"] = block;
    if (mode != "dense") params["attention"] = causal ? "unidirectional" : "bidirectional";
    if (mode == "variable") {
      params["local_window_blocks"] = Json::array();
      params["local_window_blocks"].push_back(blocks(512));
      params["num_random_blocks"] = blocks(192);
    }
    if (mode == "bigbird") {
      params["num_random_blocks"] = blocks(192);
      params["num_sliding_window_blocks"] = std::max<std::int64_t>(blocks(192) | 1, 3);
      params["num_global_blocks"] = blocks(128);
    }
    if (mode == "bslongformer") params["num_sliding_window_blocks"] = narrow ? 3 : blocks(512) | 1;
    return params;
  }
  BlockLayout layout() const {
    BlockLayout made = make_layout(component(mode, params()), "bench", heads, tokens, causal, 1);
    made.drop_later();
    return made;
  }
  std::string text() const {
    char line[128];
    std::snprintf(line, sizeof line, "%-12s block %3lld, %5lld tokens, %-6s", mode.c_str(),
                  static_cast<long long>(block), static_cast<long long>(tokens), causal ? "causal" : "");
    return line;
  }
};

struct Tensors {
  at::Tensor q, k, v, grad;

  explicit Tensors(const Setting& setting) {
    // As a model makes them.
    const at::Tensor all = at::randn({1, setting.tokens, 3, setting.heads, kWidth}).permute({2, 0, 3, 1, 4});
    q = all[0].detach().requires_grad_(true);
    k = all[1].detach().requires_grad_(true);
    v = all[2].detach().requires_grad_(true);
    grad = at::randn({1, setting.heads, setting.tokens, kWidth});
  }
};

struct Times {
  double forward = 1e9, backward = 1e9;
  double both() const { return forward + backward; }
};

void run(const Tensors& tensors, const std::function<at::Tensor()>& attend, const std::function<double()>& now,
         Times& least) {
  const double begin = now();
  const at::Tensor out = attend();
  const double middle = now();
  torch::autograd::grad({out}, {tensors.q, tensors.k, tensors.v}, {tensors.grad});
  least.forward = std::min(least.forward, middle - begin);
  least.backward = std::min(least.backward, now() - middle);
}

class Pair {
 public:
  explicit Pair(const Setting& setting) : setting_(setting), tensors_(setting), layout_(setting.layout()) {
    static const auto kernel = std::make_shared<const Component>(component("block_sparse", Json::object()));
    prepared_ = std::make_shared<const PreparedLayout>(kernel, layout_);
  }
  void rounds(int count, const std::function<double()>& now) {
    sparse = dense = {};
    for (int i = 0; i < count; ++i) {
      run(
          tensors_, [&] { return attend(); }, now, sparse);
      run(
          tensors_,
          [&] {
            return at::scaled_dot_product_attention(tensors_.q, tensors_.k, tensors_.v, {}, 0.0, setting_.causal);
          },
          now, dense);
    }
  }
  at::Tensor attend() const { return block_sparse_attention(tensors_.q, tensors_.k, tensors_.v, {}, 0.125, prepared_); }
  const Tensors& tensors() const { return tensors_; }
  double density() const { return layout_.density(); }
  Times sparse, dense;

 private:
  Setting setting_;
  Tensors tensors_;
  BlockLayout layout_;
  std::shared_ptr<const PreparedLayout> prepared_;
};

/// Forward and backward, or forward alone, against a bound; 0: none.
bool hold(const Setting& setting, int rounds, double bound, bool forward_only = false) {
  Pair pair(setting);
  pair.rounds(rounds, cpu_seconds);
  const double sparse = forward_only ? pair.sparse.forward : pair.sparse.both();
  const double dense = forward_only ? pair.dense.forward : pair.dense.both();
  const double kept = dense / sparse * pair.density();
  const bool met = kept >= bound;
  std::printf("%s density %.3f: dense %8.2f ms, sparse %8.2f ms, %6.2f times as fast, x density %.3f",
              setting.text().c_str(), pair.density(), 1e3 * dense, 1e3 * sparse, dense / sparse, kept);
  if (bound > 0) std::printf(" (%.1f)", bound);
  std::printf("%s%s\n", forward_only ? ", forward" : "", mark(met));
  std::fflush(stdout);
  return met;
}

bool hold_threads(int rounds) {
  Pair pair({"bslongformer", 64, 4096, true, 4});
  Times sparse[2], dense[2];
  for (int round = 0; round < rounds; ++round) {
    for (const int threads : {1, 2}) {
      at::set_num_threads(threads);
      pair.rounds(1, wall_seconds);
      Times &s = sparse[threads - 1], &d = dense[threads - 1];
      s = {std::min(s.forward, pair.sparse.forward), std::min(s.backward, pair.sparse.backward)};
      d = {std::min(d.forward, pair.dense.forward), std::min(d.backward, pair.dense.backward)};
    }
  }
  at::set_num_threads(1);
  const double gain = sparse[0].both() / sparse[1].both(), of_dense = dense[0].both() / dense[1].both();
  const bool met = gain >= kLeastOfThreads * of_dense;
  std::printf("two threads: sparse %.2f times as fast as one, dense %.2f: %.2f of it (%.1f)%s\n", gain, of_dense,
              gain / of_dense, kLeastOfThreads, mark(met));
  return met;
}

std::int64_t status_bytes(const char* name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name)) return std::atoll(line.c_str() + std::strlen(name)) * 1024;
  }
  return 0;
}

bool hold_memory(std::int64_t tokens) {
  {  // BLAS and allocators have what they keep.
    Pair small({"bslongformer", 64, 1024, true, 4});
    small.rounds(1, cpu_seconds);
  }
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak from here on
  const std::int64_t before = status_bytes("VmRSS:");
  Pair pair({"bslongformer", 64, tokens, true, 4});
  const at::Tensor out = pair.attend();
  const auto gradients =
      torch::autograd::grad({out}, {pair.tensors().q, pair.tensors().k, pair.tensors().v}, {pair.tensors().grad});
  const std::int64_t peak = status_bytes("VmHWM:") - before, tensor = 4 * tokens * kWidth * 4;
  const std::int64_t most = 8 * tensor + kSpareBytes;
  const bool met = peak <= most;
  std::printf("memory at %lld tokens, 4 heads: %.0f MiB; q, k, v, out, their gradients and 64 MiB are %.0f%s\n",
              static_cast<long long>(tokens), static_cast<double>(peak) / (1 << 20),
              static_cast<double>(most) / (1 << 20), mark(met));
  return met;
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_short = argc > 1 && std::strcmp(argv[1], "--short") == 0;
  const int rounds = argc > 1 + is_short ? std::atoi(argv[1 + is_short]) : is_short ? 1 : 5;
  at::set_num_threads(1);
  at::manual_seed(1);
  bool met = true;
  if (argc > 1 && std::strcmp(argv[1], "--threads") == 0) return capstan::bench::exit_code(hold_threads(15));
  if (is_short) {
    for (const char* mode : {"dense", "fixed", "variable", "bigbird", "bslongformer"})
      hold({mode, 16, 1024, true}, 1, 0);
    hold_threads(1);
    return capstan::bench::exit_code(hold_memory(2048));
  }
  met &= hold_memory(16384);
  for (const std::int64_t tokens : {4096, 8192}) {
    for (const std::int64_t block : {16, 64, 128}) {
      for (const char* mode : {"fixed", "variable", "bigbird", "bslongformer"}) {
        const bool by_chance = std::strcmp(mode, "variable") == 0 || std::strcmp(mode, "bigbird") == 0;
        for (const bool causal : {false, true}) {
          met &= hold({mode, block, tokens, causal}, rounds, block == 16 && by_chance ? kLeastByChance : kLeast);
        }
      }
    }
  }
  for (const bool causal : {false, true}) {
    for (const char* mode : {"fixed", "variable", "bigbird", "bslongformer"}) {
      met &= hold({mode, 64, 16384, causal}, std::min(rounds, 3), kLeast, true);
    }
  }
  for (const std::int64_t block : {16, 64, 128}) {
    for (const bool causal : {false, true}) hold({"bslongformer", block, 8192, causal, 1, true}, rounds, 0);
  }
  met &= hold_threads(rounds);
  return capstan::bench::exit_code(met);
}
