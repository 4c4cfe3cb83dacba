// Eigenvalues of blocks, and the second derivatives that the engine lends.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <fstream>
#include <sstream>

#include "capstan/sdk/model.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/engine/engine.hpp"
#include "core/engine/initialize.hpp"
#include "core/errors.hpp"
#include "plugins/observers/eigenvalue/power_iteration.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int64_t kWidth = 5, kClasses = 3, kRows = 6;
constexpr int kBlocks = 3;

/// A function without a second derivative: its backward hides what it computes from autograd.
struct Opaque : torch::autograd::Function<Opaque> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return x.square();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const at::NoGradGuard no_grad;
    return {2 * context->get_saved_variables()[0].detach() * gradients[0].detach()};
  }
};

/// What a net has beside its three blocks.
struct Kind {
  bool dropout = false, norm = false, grid = false, opaque = false, attention = false;
};

/// Three blocks and a head.
struct Net : torch::nn::Module {
  explicit Net(Kind kind)
      : kind(kind),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        head(register_module("head", torch::nn::Linear(kWidth, kClasses))) {
    for (int i = 0; i < kBlocks; ++i) blocks->push_back(torch::nn::Linear(kWidth, kWidth));
    if (kind.norm) norm = register_module("norm", torch::nn::BatchNorm1d(kWidth));
    const torch::NoGradGuard no_grad;
    for (at::Tensor& one : parameters()) one.copy_((torch::arange(one.numel()).view(one.sizes()) * 1.7).sin() * 0.8);
  }
  at::Tensor forward(const sdk::BatchView& batch) { return loss(batch.tensor("x"), batch.tensor("y")); }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) {
    at::Tensor hidden = x.to(head->weight.scalar_type());
    for (std::size_t i = 0; i < kBlocks; ++i) {
      hidden = hidden + blocks->at<torch::nn::LinearImpl>(i).forward(hidden).tanh();
      if (kind.dropout) hidden = torch::dropout(hidden, 0.3, is_training());
    }
    if (kind.norm) hidden = norm->forward(hidden);
    if (kind.opaque) hidden = Opaque::apply(hidden);
    if (kind.attention) {
      const at::Tensor rows = hidden.view({1, 1, hidden.size(0), kWidth});
      hidden = at::scaled_dot_product_attention(rows, rows, rows, {}, 0.0, true).view_as(hidden);
    }
    if (kind.grid) {
      const at::Tensor image = torch::arange(16, hidden.options()).view({1, 1, 4, 4});
      const at::Tensor grid = hidden.narrow(1, 0, 2).tanh().view({1, 1, hidden.size(0), 2});
      return at::grid_sampler(image, grid, 0, 0, true).square().mean();
    }
    return torch::cross_entropy_loss(head->forward(hidden).to(torch::kFloat), y);
  }

  Kind kind;
  torch::nn::ModuleList blocks;
  torch::nn::Linear head;
  torch::nn::BatchNorm1d norm{nullptr};
};

Batch batch_of(std::int64_t index) {
  Batch batch;
  batch.tensors = {{"x", (torch::arange(kRows * kWidth).view({kRows, kWidth}) * 0.9 + index).sin()},
                   {"y", (torch::arange(kRows) + index).remainder(kClasses)}};
  return batch;
}

/// Evaluates in every step, and writes what it finds to a file.
std::string recorder(const std::string& out, double tol = 0.01, int max_iter = 100) {
  std::ostringstream text;
  text << R"("observers": [{"type": "recorded_eigenvalue", "params": {"max_iter": )" << max_iter << R"(, "tol": )"
       << tol << R"(, "stability": 0, "layer_num": 3, "out": ")" << out << R"("}}], "plugins": {"path": [")"
       << CAPSTAN_TEST_BUILD_DIR "/tests/parity_plugins"
       << "\"]}";
  return text.str();
}

/// A training run of a net; `capstan` are keys of the section capstan, `more` further ones of the file.
class NetRun {
 public:
  NetRun(Kind kind, const std::string& capstan, const std::string& more = "",
         std::shared_ptr<Communicator> ranks = Communicator::alone(), int accumulation = 1)
      : net(std::make_shared<Net>(kind)) {
    at::manual_seed(77 + ranks->rank());
    using Made = sdk::Instance<sdk::ModuleModel<Net>>;
    auto* made = new Made{model_host(), sdk::ModuleModel<Net>(net, &sdk::default_step<Net>)};
    Model model(
        &sdk::ModelThunks<Net>::kVtable, made, [](void* self) { delete static_cast<Made*>(self); }, "net");
    ConfigContext context;
    context.world_size = ranks->size();
    const std::string text = R"({"train_micro_batch_size_per_gpu": 6, "steps_per_print": null, "gradient_clipping": 0.0,
        "optimizer": {"type": "SGD", "params": {"lr": 0.05}}, "gradient_accumulation_steps": )" +
                             std::to_string(accumulation) + more + R"(, "capstan": {)" + capstan + "}}";
    engine = std::make_unique<Engine>(std::move(model), load_config({text, "net.json", false}, context, plugins_),
                                      plugins_, ranks);
    next_ = ranks->rank();
  }
  double step() {
    return engine->train_batch([&] {
      const std::int64_t at = next_;
      next_ += engine->world_size();
      return batch_of(at);
    });
  }
  std::vector<double> steps(int count) {
    std::vector<double> losses;
    for (int i = 0; i < count; ++i) losses.push_back(step());
    return losses;
  }
  at::Tensor weights() {
    std::vector<at::Tensor> flat;
    const auto held = engine->gather();
    for (const NamedTensor& one : engine->model().parameters()) flat.push_back(one.tensor.detach().flatten());
    for (const NamedTensor& one : engine->model().buffers())
      flat.push_back(one.tensor.detach().flatten().to(at::kFloat));
    return torch::cat(flat).clone();
  }

 private:
  PluginIndex plugins_;
  std::int64_t next_ = 0;

 public:
  std::shared_ptr<Net> net;
  std::unique_ptr<Engine> engine;
};

std::vector<Json> lines_of(const std::string& file) {
  std::vector<Json> lines;
  std::istringstream in(read_bytes(file));
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  return lines;
}

std::vector<double> numbers(const Json& line, const char* key) {
  std::vector<double> out;
  for (const Json& one : line.at(key).as_array()) out.push_back(one.as_number());
  return out;
}

/// Of the Hessian of the mean loss over batches by a block's parameters, whole and in float64: the eigenvalue of
/// largest magnitude; NaN where another one comes near it, between which power iteration cannot tell.
double reference(Net& trained, int block, const std::vector<std::int64_t>& batches) {
  Net net(trained.kind);
  {
    const torch::NoGradGuard no_grad;
    net.to(torch::kDouble);
    const auto from = trained.parameters(), to = net.parameters();
    for (std::size_t i = 0; i < to.size(); ++i) to[i].detach().copy_(from[i]);
  }
  at::Tensor loss = torch::zeros({}, torch::kDouble);
  for (const std::int64_t index : batches) {
    at::Tensor hidden = batch_of(index).tensors.at("x").to(torch::kDouble);
    for (std::size_t i = 0; i < kBlocks; ++i) {
      hidden = hidden + net.blocks->at<torch::nn::LinearImpl>(i).forward(hidden).tanh();
    }
    loss = loss + torch::cross_entropy_loss(net.head->forward(hidden), batch_of(index).tensors.at("y"));
  }
  loss = loss / static_cast<double>(batches.size());
  const auto parameters = net.blocks->at<torch::nn::LinearImpl>(static_cast<std::size_t>(block)).parameters();
  const auto flat = [](const std::vector<at::Tensor>& list) {
    std::vector<at::Tensor> parts;
    for (const at::Tensor& one : list) parts.push_back(one.flatten());
    return torch::cat(parts);
  };
  const at::Tensor gradient = flat(torch::autograd::grad({loss}, parameters, {}, true, true));
  std::vector<at::Tensor> rows;
  for (std::int64_t i = 0; i < gradient.numel(); ++i) {
    rows.push_back(flat(torch::autograd::grad({gradient[i]}, parameters, {}, true)));
  }
  const at::Tensor values = torch::linalg_eigvalsh(torch::stack(rows));
  const at::Tensor largest = std::get<0>(values.abs().topk(2));
  if (largest[1].item<double>() > 0.8 * largest[0].item<double>()) return NAN;
  return values[values.abs().argmax()].item<double>();
}

TEST(PowerIteration, FindsTheEigenvalueOfLargestMagnitude) {
  at::manual_seed(4);
  for (int i = 0; i < 10; ++i) {
    at::Tensor matrix = torch::randn({12, 12});
    matrix = matrix + matrix.t() + (i % 2 == 0 ? 6 : -6) * torch::eye(12);
    const at::Tensor values = torch::linalg_eigvalsh(matrix.to(torch::kDouble));
    const double wanted = values[values.abs().argmax()].item<double>();
    const auto multiply = [&](const eigenvalue::Vector& v) {
      const at::Tensor product = matrix.mv(torch::cat({v[0].flatten(), v[1]}));
      return eigenvalue::Vector{product.narrow(0, 0, 8).view({2, 4}), product.narrow(0, 8, 4)};
    };
    const auto found = eigenvalue::largest_eigenvalue(multiply, {torch::randn({2, 4}), torch::randn({4})},
                                                      {.max_iter = 3000, .tol = 1e-6, .stability = 1e-6});
    EXPECT_NEAR(found.eigenvalue, wanted, 1e-2 * std::abs(wanted));
    EXPECT_LT(found.products, 3000);
  }
}

TEST(PowerIteration, EndsWhereItIsToldTo) {
  std::int64_t products = 0;
  const auto same = [&](const eigenvalue::Vector& v) {
    ++products;
    return v;
  };
  const eigenvalue::Vector start = {torch::ones({3})};
  // A first quotient of 1 has nothing before it that it could be compared with.
  EXPECT_EQ(eigenvalue::largest_eigenvalue(same, start, {}).products, 2);
  EXPECT_EQ(eigenvalue::largest_eigenvalue(same, start, {.max_iter = 1}).products, 1);
  const auto zero = [](const eigenvalue::Vector& v) { return eigenvalue::Vector{torch::zeros_like(v[0])}; };
  const auto nothing = eigenvalue::largest_eigenvalue(zero, start, {});
  EXPECT_EQ(nothing.eigenvalue, 0);
  EXPECT_EQ(nothing.products, 1);
  EXPECT_EQ(products, 3);
}

TEST(PowerIteration, GivesMagnitudesOverTheLargest) {
  EXPECT_THAT(eigenvalue::relative_magnitudes({2, -4, 0, 1}), ::testing::ElementsAre(0.5, 1, 1, 0.25));
  EXPECT_THAT(eigenvalue::relative_magnitudes({0, 0}), ::testing::ElementsAre(1, 1));
}

TEST(Eigenvalue, IsThatOfTheWholeHessianInDoublePrecision) {
  const TemporaryFolder folder;
  for (const int accumulation : {1, 2}) {
    const std::string out = (folder.path() / ("out" + std::to_string(accumulation))).string();
    NetRun run({}, recorder(out, 1e-6, 3000), "", Communicator::alone(), accumulation);
    std::vector<double> wanted;
    for (int step = 0; step < 3; ++step) {
      // Of the last micro-batch alone.
      const std::int64_t last = (step + 1) * accumulation - 1;
      for (int block = 0; block < kBlocks; ++block) wanted.push_back(reference(*run.net, block, {last}));
      run.step();
    }
    std::vector<double> found;
    for (const Json& line : lines_of(out + ".0")) {
      for (const double one : numbers(line, "eigenvalues")) found.push_back(one);
    }
    ASSERT_EQ(found.size(), wanted.size());
    int compared = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (std::isnan(wanted[i])) continue;
      ++compared;
      EXPECT_NEAR(found[i], wanted[i], 1e-2 * std::abs(wanted[i])) << i;
    }
    EXPECT_GE(compared, 6);
  }
}

TEST(Eigenvalue, IsThatOfTheMeanOverRanksAtEveryStage) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    const TemporaryFolder folder;
    const std::string path = communicator.all_gather_text("folder", folder.path().string())[0];
    const std::shared_ptr<Communicator> both(&communicator, [](Communicator*) {});
    std::vector<std::string> texts;
    for (const char* zero : {R"("stage": 0)", R"("stage": 1)", R"("stage": 2)",
                             R"("stage": 3, "stage3_param_persistence_threshold": 0)"}) {
      const std::string out = path + "/" + std::to_string(texts.size());
      NetRun run({}, recorder(out, 1e-6, 3000), std::string(", \"zero_optimization\": {") + zero + "}", both);
      double wanted = 0;
      if (texts.empty()) wanted = reference(*run.net, 1, {0, 1});
      run.steps(3);
      texts.push_back(read_bytes(out + "." + std::to_string(communicator.rank())));
      if (texts.size() == 1) {
        EXPECT_NEAR(numbers(lines_of(out + ".0")[0], "eigenvalues")[1], wanted, 1e-2 * std::abs(wanted));
      }
      EXPECT_EQ(texts.back(), texts.front()) << zero;
    }
    for (const std::string& theirs : communicator.all_gather_text("texts", texts.front())) {
      EXPECT_EQ(theirs, texts.front());
    }
  });
}

/// What an observer of a small gpt finds in two steps.
std::string found_of_gpt(Communicator& communicator, const std::string& zero, const std::string& out) {
  PluginIndex plugins;
  ConfigContext context;
  context.world_size = communicator.size();
  const Config config = load_config({R"({"train_micro_batch_size_per_gpu": 2, "steps_per_print": null,
      "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "zero_optimization": {)" +
                                         zero + "}, \"capstan\": {" + recorder(out, 0.001, 30) + "}}",
                                     "gpt.json", false},
                                    context, plugins);
  Registry registry(plugins);
  const Json params = Json::parse(R"({"size": "tiny", "layers": 3, "d": 16, "heads": 2, "seq": 8, "vocab": 32,
                                      "init": "formula", "init_seed": 3})");
  Engine engine(Model(registry.create("model", "model", "gpt", params, model_host())), config, plugins,
                {&communicator, [](Communicator*) {}});
  for (int step = 0; step < 2; ++step) {
    engine.train_batch([&] {
      const at::Tensor ids = (torch::arange(18).view({2, 9}) * (7 + step + communicator.rank())).remainder(32);
      Batch batch;
      batch.tensors = {{"input_ids", ids.narrow(1, 0, 8).contiguous()}, {"labels", ids.narrow(1, 1, 8).contiguous()}};
      return batch;
    });
  }
  return read_bytes(out + "." + std::to_string(communicator.rank()));
}

TEST(Eigenvalue, OfGptIsTheSameAtEveryStage) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    const TemporaryFolder folder;
    const std::string path = communicator.all_gather_text("folder", folder.path().string())[0];
    std::vector<std::string> texts;
    for (const char* zero : {R"("stage": 0)", R"("stage": 1)", R"("stage": 2)",
                             R"("stage": 3, "stage3_param_persistence_threshold": 0)"}) {
      const std::string out = path + "/" + std::to_string(texts.size());
      texts.push_back(found_of_gpt(communicator, zero, out));
      EXPECT_EQ(texts.back(), texts.front()) << zero;
    }
    EXPECT_EQ(lines_of(path + "/0.0").size(), 2u);
    for (const double one : numbers(lines_of(path + "/0.0")[0], "eigenvalues")) EXPECT_GT(std::abs(one), 1e-3);
    for (const std::string& theirs : communicator.all_gather_text("texts", texts.front())) {
      EXPECT_EQ(theirs, texts.front());
    }
  });
}

at::Tensor generator_state() { return at::globalContext().defaultGenerator(at::kCPU).get_state().clone(); }

TEST(Curvature, LeavesTrainingAsItWas) {
  const TemporaryFolder folder;
  for (const Kind kind : {Kind{.dropout = true}, Kind{.norm = true}, Kind{.attention = true}}) {
    for (const char* zero : {R"("stage": 0)", R"("stage": 3, "stage3_param_persistence_threshold": 0)"}) {
      const std::string more = std::string(", \"zero_optimization\": {") + zero + "}";
      NetRun plain(kind, "", more, Communicator::alone(), 2);
      const std::vector<double> losses = plain.steps(4);
      const at::Tensor state = generator_state();
      const bool flash = at::globalContext().userEnabledFlashSDP();
      NetRun run(kind, recorder((folder.path() / "out").string(), 0.01, 10), more, Communicator::alone(), 2);
      EXPECT_EQ(run.steps(4), losses) << zero;
      EXPECT_TRUE(run.weights().equal(plain.weights())) << zero;
      EXPECT_TRUE(generator_state().equal(state)) << zero;
      EXPECT_EQ(at::globalContext().userEnabledFlashSDP(), flash);
    }
  }
  EXPECT_GT(lines_of((folder.path() / "out.0").string()).size(), 20u);
}

TEST(Curvature, NamesAnOperatorThatHasNoSecondDerivativeAndLeavesAllAsItWas) {
  const TemporaryFolder folder;
  const std::string capstan = recorder((folder.path() / "out").string());
  for (const auto& [kind, name] : {std::pair(Kind{.dropout = true, .grid = true}, "aten::grid_sampler_2d_backward"),
                                   std::pair(Kind{.dropout = true, .opaque = true}, "Opaque")}) {
    for (const bool setting : {true, false}) {
      NetRun plain(kind, "");
      plain.step();
      const at::Tensor state = generator_state();
      NetRun run(kind, capstan);
      at::globalContext().setSDPUseFlash(setting);
      at::globalContext().setSDPUseMath(!setting);
      EXPECT_THAT([&] { run.step(); },
                  ThrowsMessage<std::exception>(
                      ::testing::AllOf(HasSubstr("the model's operator '"), HasSubstr(name),
                                       HasSubstr("has no second derivative, which the curvature of the loss needs."))));
      EXPECT_EQ(at::globalContext().userEnabledFlashSDP(), setting);
      EXPECT_EQ(at::globalContext().userEnabledMathSDP(), !setting);
      at::globalContext().setSDPUseFlash(true);
      at::globalContext().setSDPUseMath(true);
      EXPECT_TRUE(generator_state().equal(state));
    }
  }
}

std::string listed(const std::string& name, int count) {
  return R"("observers": [{"type": "eigenvalue", "params": {"layer_name": ")" + name + R"(", "layer_num": )" +
         std::to_string(count) + "}}]";
}

TEST(Eigenvalue, RefusesBlocksThatAreNotThere) {
  EXPECT_THAT(
      [] { NetRun run({}, listed("bert.encoder.layer", 2)); },
      ThrowsMessage<ConfigError>(HasSubstr(
          "quantize_training.eigenvalue.layer_name: the model has no trained parameter under "
          "'bert.encoder.layer.0', so 'bert.encoder.layer' is not a container of numbered blocks. It has 'blocks' "
          "(3).")));
  EXPECT_THAT([] { NetRun run({}, listed("blocks", 4)); },
              ThrowsMessage<ConfigError>(HasSubstr("quantize_training.eigenvalue.layer_num: 4, and 'blocks' has 3.")));
}

TEST(Eigenvalue, ComputesNothingWhereNoWeightHasBitsToLose) {
  const TemporaryFolder folder;
  const std::string csv =
      R"(, "csv_monitor": {"enabled": true, "job_name": "run", "output_path": ")" + folder.path().string() + "\"}";
  NetRun run({.grid = true}, listed("blocks", 3), csv);  // which has no second derivative
  run.steps(2);
  run.engine.reset();
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "run/Train_Eigenvalues_ModelBlockParam_0.csv"));
}

/// MoQ of the blocks' weights in fp16, with periods of two updates.
std::string moq(int resolution, const std::string& folder) {
  return R"(, "fp16": {"enabled": true, "loss_scale": 128}, "csv_monitor": {"enabled": true, "job_name": "run",
      "output_path": ")" +
         folder + R"("}, "compression_training": {"weight_quantization": {"shared_parameters": {"enabled": true,
      "quantize_weight_in_forward": false}, "different_groups": {"g": {"params": {"start_bits": 8, "target_bits": 6,
      "quantization_period": 2}, "modules": ["blocks"]}}}},
      "quantize_training": {"eigenvalue": {"enabled": true, "layer_name": "blocks", "layer_num": 3, "max_iter": 20,
      "gas_boundary_resolution": )" +
         std::to_string(resolution) + "}}";
}

/// The bits of each block's weight and the update of the next drop, as a checkpoint has them.
std::vector<std::vector<std::int64_t>> bits_of(NetRun& run, const std::string& dir) {
  run.engine->save_checkpoint(dir, "bits");
  const Json saved =
      Json::parse(read_checkpoint(dir, "bits").state.at("compressions").as_object().begin()->second.as_string());
  std::vector<std::vector<std::int64_t>> bits;
  for (int b = 0; b < kBlocks; ++b) {
    auto& one = bits.emplace_back();
    for (const Json& number : saved.at("weights").at("blocks." + std::to_string(b) + ".weight").as_array()) {
      one.push_back(number.as_integer());
    }
  }
  return bits;
}

/// The last value of a csv monitor's file, and how many there are.
std::pair<double, int> last_of(const std::filesystem::path& file) {
  std::istringstream in(read_bytes(file));
  std::string line, last;
  int rows = -1;
  for (; std::getline(in, line); ++rows) last = line;
  return {std::stod(last.substr(last.find(',') + 1)), rows};
}

TEST(Eigenvalue, LeavesBlocksTheirBitsLongerWhereTheLossIsMoreCurved) {
  const TemporaryFolder folder, again;
  const std::string dir = (folder.path() / "ck").string();
  NetRun run({}, "", moq(1, folder.path().string()));
  run.steps(2);  // the first drop is at update 2
  run.engine->flush_monitors();
  std::vector<double> relative;
  for (int b = 0; b < kBlocks; ++b) {
    const auto [value, rows] =
        last_of(folder.path() / ("run/Train_Eigenvalues_ModelBlockParam_" + std::to_string(b) + ".csv"));
    EXPECT_EQ(rows, 2);
    EXPECT_GT(value, 0);
    EXPECT_LE(value, 1);
    relative.push_back(value);
  }
  EXPECT_EQ(*std::max_element(relative.begin(), relative.end()), 1);
  const auto bits = bits_of(run, dir);
  for (std::size_t b = 0; b < kBlocks; ++b) {
    const auto factor = 1 + static_cast<std::int64_t>(std::floor(4 * relative[b]));
    EXPECT_THAT(bits[b], ::testing::ElementsAre(7, 2 + 2 * factor)) << relative[b];
  }
  // A run that goes on from here has the same bits, and so the same losses.
  NetRun resumed({}, "", moq(1, again.path().string()));
  resumed.engine->load_checkpoint(dir, "bits");
  resumed.steps(0);
  std::vector<double> straight, other;
  for (int i = 0; i < 12; ++i) {
    straight.push_back(run.step());
    Batch batch = batch_of(2 + i);
    other.push_back(resumed.engine->train_batch([&] { return batch; }));
  }
  EXPECT_EQ(other, straight);
  EXPECT_EQ(bits_of(resumed, dir), bits_of(run, dir));
  // By update 2 + 2 * 5 all bits have fallen; since then there is nothing to compute.
  for (const auto& one : bits_of(run, dir)) EXPECT_EQ(one[0], 6);
  run.engine->flush_monitors();
  EXPECT_LE(last_of(folder.path() / "run/Train_Eigenvalues_ModelBlockParam_0.csv").second, 12);
}

TEST(Eigenvalue, IsKeptBetweenEvaluationsAndOverAResume) {
  const TemporaryFolder folder, again;
  const std::string dir = (folder.path() / "ck").string();
  NetRun run({}, "", moq(4, folder.path().string())), resumed({}, "", moq(4, again.path().string()));
  run.step();  // evaluated here, before update 1; the drops of update 2 go by it
  run.engine->save_checkpoint(dir, "one");
  resumed.engine->load_checkpoint(dir, "one");
  Batch batch = batch_of(1);
  EXPECT_EQ(resumed.engine->train_batch([&] { return batch; }), run.step());
  EXPECT_EQ(bits_of(resumed, (again.path() / "ck").string()), bits_of(run, dir));
  EXPECT_EQ(bits_of(run, dir)[0][0], 7);
}

}  // namespace
}  // namespace capstan
