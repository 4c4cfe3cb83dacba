// A task that needs global attention: the first block of a sequence holds one symbol among noise, and the label at the
// last token is that symbol. `bslongformer` whose first block is global learns it; a sliding window alone cannot, since
// one layer carries nothing over more than its window.
//
//   sparse_copy_task [--short]     4,096 tokens in blocks of 64; --short: 512 tokens in blocks of 16
//
// Prints the share of 512 sequences never seen that is answered rightly. Exits with 1 where the first is below 0.99, or
// the second above what guessing gives by more than chance.

#include <torch/torch.h>
#include <unistd.h>

#include <capstan/capstan.hpp>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "bench/bound.hpp"

namespace {

using namespace capstan;

constexpr std::int64_t kSymbols = 16, kNoise = 48, kWidth = 32, kHeads = 2, kBatch = 16, kEvaluated = 512;
constexpr double kLeast = 0.99, kMost = 1.0 / kSymbols + 0.06;  // four standard deviations of guesses and more

struct Shape {
  std::int64_t tokens, block;
  int steps;
};

/// One layer of attention. Counts the right answers of the batches that it sees.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::int64_t tokens)
      : symbols(register_module("symbols", torch::nn::Embedding(kSymbols + kNoise, kWidth))),
        positions(register_module("positions", torch::nn::Embedding(tokens, kWidth))),
        qkv(register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth))),
        head(register_module("head", torch::nn::Linear(kWidth, kSymbols))) {}

  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& labels) {
    const auto rows = ids.size(0), tokens = ids.size(1);
    const auto hidden = symbols(ids) + positions(torch::arange(tokens));
    const auto parts = qkv(hidden).view({rows, tokens, 3, kHeads, -1}).permute({2, 0, 3, 1, 4}).unbind(0);
    const auto mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
    const auto logits = head(mixed.select(2, tokens - 1).reshape({rows, kWidth}));
    right += logits.argmax(1).eq(labels).sum().item<std::int64_t>();
    return torch::nn::functional::cross_entropy(logits, labels);
  }

  torch::nn::Embedding symbols, positions;
  torch::nn::Linear qkv, head;
  std::int64_t right = 0;
};

Batch batch_of(const Shape& shape) {
  const auto labels = torch::randint(kSymbols, {kBatch}, torch::kLong);
  const auto ids = torch::randint(kSymbols, kSymbols + kNoise, {kBatch, shape.tokens}, torch::kLong);
  const auto places = torch::randint(shape.block, {kBatch, 1}, torch::kLong);
  ids.scatter_(1, places, labels.view({kBatch, 1}));
  Batch batch;
  batch.tensors = {{"input_ids", ids}, {"labels", labels}};
  return batch;
}

/// The share of right answers after training.
double learn(const Shape& shape, const std::string& globals) {
  const std::string config = R"({"train_batch_size": )" + std::to_string(kBatch) + R"(, "steps_per_print": null,
    "gradient_clipping": 0, "optimizer": {"type": "Adam", "params": {"lr": 0.01}},
    "sparse_attention": {"mode": "bslongformer", "num_sliding_window_blocks": 3, "block": )" +
                             std::to_string(shape.block) + R"(, "global_block_indices": [)" + globals + "]}}";
  torch::manual_seed(1);
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("sparse_copy_task-" + std::to_string(::getpid()) + ".json");
  std::ofstream(file) << config;
  const auto net = std::make_shared<NetImpl>(shape.tokens);
  Engine engine = initialize(net, file.string());
  std::filesystem::remove(file);
  for (int step = 0; step < shape.steps; ++step) engine.train_batch([&] { return batch_of(shape); });
  net->right = 0;
  engine.eval_batch([&] { return batch_of(shape); }, kEvaluated / kBatch);
  return static_cast<double>(net->right) / kEvaluated;
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_short = argc > 1 && std::strcmp(argv[1], "--short") == 0;
  const Shape shape = is_short ? Shape{512, 16, 200} : Shape{4096, 64, 400};
  const double with = learn(shape, "0"), without = learn(shape, "");
  std::printf(
      "%lld tokens, blocks of %lld, %d steps: %.3f right with a global block (%.2f)%s, %.3f with a window alone "
      "(at most %.3f; guessing: %.3f)%s\n",
      static_cast<long long>(shape.tokens), static_cast<long long>(shape.block), shape.steps, with, kLeast,
      bench::mark(with >= kLeast), without, kMost, 1.0 / kSymbols, bench::mark(without <= kMost));
  return bench::exit_code(with >= kLeast && without <= kMost);
}
