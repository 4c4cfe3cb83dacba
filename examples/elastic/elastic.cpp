// Trains a module with the loop of `capstan train`, and goes on when processes are lost, leave or join.
//
//   elastic TEXT_FILE
//   capstan launch --elastic 1:4 --config ds_config.json elastic TEXT_FILE

#include <torch/torch.h>

#include <capstan/capstan.hpp>
#include <fstream>
#include <iostream>
#include <iterator>

struct NextByte : torch::nn::Module {
  torch::nn::Embedding embedding = register_module("embedding", torch::nn::Embedding(256, 32));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(32, 256));

  at::Tensor forward(const at::Tensor& bytes, const at::Tensor& next) {
    return torch::nn::functional::cross_entropy(head(embedding(bytes)).flatten(0, 1), next.flatten());
  }
};

int main(int argc, char** argv) try {
  std::ifstream file(argc > 1 ? argv[1] : "", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = torch::tensor(std::vector<std::int64_t>(text.begin(), text.end())) & 255;
  const std::int64_t length = 32;

  capstan::RunParts parts;
  parts.model = [](const auto&) { return capstan::wrap_module(std::make_shared<NextByte>()); };
  parts.data = [&](const auto&, const auto&) {
    capstan::RunData data{.samples = (bytes.size(0) - 1) / length, .sequence_length = length};
    data.read = [&](std::span<const std::int64_t> numbers) {  // sample n begins at byte n * length
      const auto places =
          torch::tensor(at::ArrayRef(numbers.data(), numbers.size())).unsqueeze(1) * length + torch::arange(length);
      capstan::Batch batch;
      batch.tensors = {{"input_ids", bytes.index({places})}, {"labels", bytes.index({places + 1})}};
      return batch;
    };
    return data;
  };
  return capstan::Run(capstan::RunSource::file("ds_config.json"), parts).train();
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
