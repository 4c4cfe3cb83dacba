// The loss of a language model's head in chunks beside that of all logits at once: forward and backward of
// capstan::linear_cross_entropy, 2,048 rows of width 576 in float32, on one thread.
//
//   linear_cross_entropy [--short] [ROUNDS]     default: 3, about four minutes
//
// Both forms take turns. Memory is the peak of the process beyond hidden states, weight and the weight's gradient; time
// the least CPU time of the rounds. The program holds, at vocabularies of 49,152 and 128,256:
//   - memory: at most 0.2 of the plain form's;
//   - time: at most 1.1 of the plain form's;
//   - the loss: within one part in a million.
// Exits with 1 where a bound is missed. --short: small tensors, of which the loss alone is held.

#include "capstan/linear_cross_entropy.hpp"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <malloc.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <limits>
#include <string>

#include "bench/bound.hpp"
#include "core/config/typed/config.hpp"
#include "core/loss/loss_chunk.hpp"

namespace {

using capstan::bench::mark;

constexpr double kMostMemory = 0.2, kMostTime = 1.1, kMostOfLoss = 1e-6;

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// A line of /proc/self/status, in bytes.
double status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return 1024 * std::strtod(line.c_str() + key.size(), nullptr);
  }
  return 0;
}

struct Size {
  std::int64_t rows, width, vocabulary, chunk_bytes;
};

struct Cost {
  double loss = 0, seconds = std::numeric_limits<double>::infinity(), bytes = 0;
};

/// Adds one more round to `cost`.
void measure(const Size& size, std::int64_t chunk_bytes, const at::Tensor& hidden, const at::Tensor& weight,
             const at::Tensor& labels, Cost& cost) {
  const capstan::LossChunkScope chunk(chunk_bytes);
  const at::Tensor h = hidden.detach().requires_grad_(true), w = weight.detach().requires_grad_(true);
  malloc_trim(0);
  const double before = status_bytes("VmRSS:"), begin = cpu_seconds();
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak from here on
  const at::Tensor loss = capstan::linear_cross_entropy(h, w, labels);
  loss.backward();
  cost.seconds = std::min(cost.seconds, cpu_seconds() - begin);
  const double gradient = 4.0 * static_cast<double>(size.vocabulary * size.width);
  cost.bytes = std::max(cost.bytes, status_bytes("VmHWM:") - before - gradient);
  cost.loss = loss.item<double>();
}

bool compare(const Size& size, int rounds, bool bounds) {
  const at::Tensor hidden = at::randn({size.rows, size.width});
  const at::Tensor weight = at::randn({size.vocabulary, size.width}).mul_(0.05);
  const at::Tensor labels = at::randint(0, size.vocabulary, {size.rows}, at::kLong);
  Cost plain, chunked;
  for (int round = 0; round < rounds; ++round) {
    measure(size, 0, hidden, weight, labels, plain);
    measure(size, size.chunk_bytes, hidden, weight, labels, chunked);
  }
  const double memory = chunked.bytes / plain.bytes, time = chunked.seconds / plain.seconds;
  const bool small = !bounds || memory <= kMostMemory, fast = !bounds || time <= kMostTime;
  const bool equal = std::abs(chunked.loss - plain.loss) <= kMostOfLoss * plain.loss;
  std::printf(
      "vocabulary %7lld: memory %6.0f MB, plain %6.0f MB: %.3f%s; CPU %.2f s, plain %.2f s: %.3f%s; loss %.9g, "
      "plain %.9g%s\n",
      static_cast<long long>(size.vocabulary), chunked.bytes * 1e-6, plain.bytes * 1e-6, memory, mark(small),
      chunked.seconds, plain.seconds, time, mark(fast), chunked.loss, plain.loss, mark(equal));
  return small && fast && equal;
}

}  // namespace

int main(int argc, char** argv) {
  const bool brief = argc > 1 && std::strcmp(argv[1], "--short") == 0;
  const int rounds = argc > 1 + brief ? std::max(std::atoi(argv[1 + brief]), 1) : brief ? 1 : 3;
  at::set_num_threads(1);
  at::manual_seed(1);
  mallopt(M_MMAP_THRESHOLD, 1 << 20);  // freed memory goes back to the system at once
  if (brief) return capstan::bench::exit_code(compare({256, 32, 1024, 64 * 1024}, rounds, false));
  bool met = true;
  for (const std::int64_t vocabulary : {49'152, 128'256}) {
    met &= compare({2048, 576, vocabulary, capstan::RunConfig::kLossChunk}, rounds, true);
  }
  return capstan::bench::exit_code(met);
}
