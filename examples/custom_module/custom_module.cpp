// A byte-level GRU, written as any LibTorch program would write it, trained as a DeepSpeed configuration file says.
//
//   custom_module TEXT_FILE [ds_config.json] [STEPS]

#include <torch/torch.h>

#include <capstan/capstan.hpp>
#include <fstream>
#include <iostream>
#include <iterator>

namespace {

constexpr std::int64_t kBytes = 256;
constexpr std::int64_t kTime = 64;

struct CharGruImpl : torch::nn::Module {
  explicit CharGruImpl(std::int64_t width)
      : embedding(register_module("embedding", torch::nn::Embedding(kBytes, width))),
        gru(register_module("gru", torch::nn::GRU(torch::nn::GRUOptions(width, width).batch_first(true)))),
        head(register_module("head", torch::nn::Linear(width, kBytes))) {}

  torch::Tensor forward(const torch::Tensor& inputs, const torch::Tensor& labels) {
    const auto logits = head(std::get<0>(gru(embedding(inputs))));
    return torch::nn::functional::cross_entropy(logits.flatten(0, 1), labels.flatten());
  }

  torch::nn::Embedding embedding;
  torch::nn::GRU gru;
  torch::nn::Linear head;
};
TORCH_MODULE(CharGru);

torch::Tensor read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.size() <= kTime) throw std::runtime_error(path + ": cannot be read, or is shorter than a sequence");
  return torch::tensor(at::ArrayRef<std::uint8_t>(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()))
      .to(torch::kLong);
}

/// Sequences from random places of the text, and the bytes that follow each of theirs.
capstan::Batch random_batch(const torch::Tensor& text, std::int64_t rows) {
  const auto starts = torch::randint(text.size(0) - kTime, {rows, 1});
  const auto places = starts + torch::arange(kTime);
  capstan::Batch batch;
  batch.tensors = {{"input_ids", text.index({places})}, {"labels", text.index({places + 1})}};
  return batch;
}

int train(const std::string& text_file, const std::string& config, int steps) {
  torch::manual_seed(1);
  const auto text = read_bytes(text_file);
  CharGru model(96);

  capstan::Engine engine = capstan::initialize(model, config);
  const auto rows = engine.config().batch.micro_batch_size;
  for (int step = 1; step <= steps; ++step) {
    const double loss = engine.train_batch([&] { return random_batch(text, rows); });
    if (step == 1 || step % 20 == 0) std::cout << "step " << step << " loss " << loss << std::endl;
  }
  const std::string tag = engine.save_checkpoint("checkpoints");
  std::cout << "saved checkpoints/" << tag << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) {
    std::cerr << "usage: custom_module TEXT_FILE [ds_config.json] [STEPS]\n";
    return 2;
  }
  return train(argv[1], argc > 2 ? argv[2] : "ds_config.json", argc > 3 ? std::stoi(argv[3]) : 100);
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
