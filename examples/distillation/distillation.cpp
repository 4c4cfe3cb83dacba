// A student of two blocks learns from a teacher of four (Hinton, Vinyals and Dean 2015, arXiv 1503.02531, section 2):
// it begins with two of the teacher's blocks, and its loss is (1 - a) CE + a T^2 KL(teacher || student) at temperature
// T.
//
//   distillation TEXT_FILE [STEPS] [A] [SEED]     defaults: 300, 0.5, 1; A = 0 trains without the teacher's words
//
// teacher.json and student.json are DeepSpeed configuration files.

#include <torch/torch.h>

#include <capstan/capstan.hpp>
#include <fstream>
#include <iostream>
#include <iterator>

namespace {

constexpr std::int64_t kBytes = 256, kTime = 64, kWidth = 64;
constexpr double kTemperature = 1;
namespace F = torch::nn::functional;

struct ByteNetImpl : torch::nn::Module {
  explicit ByteNetImpl(int depth)
      : embedding(register_module("embedding", torch::nn::Embedding(kBytes, kWidth))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        head(register_module("head", torch::nn::Linear(kWidth, kBytes))) {
    for (int i = 0; i < depth; ++i) {
      blocks->push_back(torch::nn::GRU(torch::nn::GRUOptions(kWidth, kWidth).batch_first(true)));
    }
  }
  torch::Tensor forward(const torch::Tensor& inputs) {
    auto hidden = embedding(inputs);
    for (const auto& block : *blocks) hidden = hidden + std::get<0>(block->as<torch::nn::GRU>()->forward(hidden));
    return head(hidden).flatten(0, 1);
  }
  torch::nn::Embedding embedding;
  torch::nn::ModuleList blocks;
  torch::nn::Linear head;
};
TORCH_MODULE(ByteNet);

/// Sequences from random places of [from, to) of the text, and the bytes that follow each of theirs.
capstan::Batch batch_of(const torch::Tensor& text, std::int64_t from, std::int64_t to, std::int64_t rows) {
  const auto places = torch::randint(from, to - kTime, {rows, 1}) + torch::arange(kTime);
  capstan::Batch batch;
  batch.tensors = {{"inputs", text.index({places})}, {"labels", text.index({places + 1})}};
  return batch;
}

void train(const std::string& file, int steps, double share, std::uint64_t seed) {
  std::ifstream stream(file, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), {}};
  const auto text =
      torch::tensor(at::ArrayRef<std::uint8_t>(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()))
          .to(torch::kLong);
  const std::int64_t seen = text.numel() * 9 / 10;  // the rest is for evaluation

  torch::manual_seed(seed);
  auto teacher = std::make_shared<ByteNetImpl>(4);
  {
    const auto loss = [](ByteNetImpl& net, const capstan::BatchView& batch) {
      return F::cross_entropy(net.forward(batch.tensor("inputs")), batch.tensor("labels").flatten());
    };
    capstan::Engine engine = capstan::initialize(teacher, loss, "teacher.json");
    for (int step = 0; step < 4 * steps; ++step) engine.train_batch([&] { return batch_of(text, 0, seen, 16); });
    engine.save_checkpoint("teacher");
  }

  const auto loss = [&](ByteNetImpl& student, const capstan::BatchView& batch) {
    const auto logits = student.forward(batch.tensor("inputs"));
    const auto truth = F::cross_entropy(logits, batch.tensor("labels").flatten());
    if (share == 0 || !student.is_training()) return truth;
    torch::NoGradGuard no_grad_for_teacher;
    const auto words = torch::log_softmax(teacher->forward(batch.tensor("inputs")) / kTemperature, -1);
    at::AutoGradMode train_student(true);
    const auto options = F::KLDivFuncOptions().reduction(torch::kBatchMean).log_target(true);
    const auto distance = F::kl_div(torch::log_softmax(logits / kTemperature, -1), words, options);
    return (1 - share) * truth + share * kTemperature * kTemperature * distance;
  };
  capstan::Engine engine = capstan::initialize(std::make_shared<ByteNetImpl>(2), loss, "student.json");
  engine.load_teacher("teacher");
  for (int step = 0; step < steps; ++step) engine.train_batch([&] { return batch_of(text, 0, seen, 16); });
  torch::manual_seed(99);
  std::cout << "eval_loss " << engine.eval_batch([&] { return batch_of(text, seen, text.numel(), 64); }, 4)
            << std::endl;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) throw std::runtime_error("usage: distillation TEXT_FILE [STEPS] [A] [SEED]");
  train(argv[1], argc > 2 ? std::stoi(argv[2]) : 300, argc > 3 ? std::stod(argv[3]) : 0.5,
        argc > 4 ? std::stoull(argv[4]) : 1);
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
