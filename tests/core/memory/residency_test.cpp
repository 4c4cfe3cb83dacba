#include "core/memory/residency.hpp"

#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <functional>
#include <thread>

#include "tests/core/memory/copy_source.hpp"

namespace capstan {
namespace {

namespace nn = torch::nn;
using at::Tensor;
using testing::HasSubstr;

/// A model: its parameters and what computes the loss.
struct Plain {
  std::vector<Tensor> parameters;
  std::function<Tensor()> loss;
};

struct Kind {
  const char* name;
  std::function<Plain()> make;
};

std::vector<ParameterResidency::Parameter> named(const std::vector<Tensor>& parameters) {
  std::vector<ParameterResidency::Parameter> list;
  for (std::size_t i = 0; i < parameters.size(); ++i) list.push_back({"p" + std::to_string(i), parameters[i]});
  return list;
}

/// Losses of some steps of SGD, and all gradients.
struct Trained {
  std::vector<Tensor> losses, gradients;
};

constexpr int kSteps = 4;  // one is recorded, the others follow
constexpr double kRate = 0.01;

Trained train_plain(const Kind& kind) {
  torch::manual_seed(7);
  Plain model = kind.make();
  Trained result;
  for (int step = 0; step < kSteps; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      const Tensor loss = model.loss();
      loss.backward();
      result.losses.push_back(loss.detach());
    }
    const at::NoGradGuard no_grad;
    for (Tensor& parameter : model.parameters) {
      const Tensor gradient = parameter.grad().defined() ? parameter.grad().to_dense() : at::zeros_like(parameter);
      result.gradients.push_back(gradient.clone());
      parameter.sub_(gradient, kRate);
      parameter.mutable_grad().reset();
    }
  }
  return result;
}

Trained train_resident(const Kind& kind, ResidencyLimits limits) {
  torch::manual_seed(7);
  Plain model = kind.make();
  CopySource source(model.parameters);
  ParameterResidency residency(named(model.parameters), source, limits);
  residency.drop();
  Trained result;
  for (int step = 0; step < kSteps; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      residency.begin_pass(ParameterResidency::Pass::kTraining);
      {
        const InterceptorScope scope(residency);
        const Tensor loss = model.loss();
        loss.backward();
        result.losses.push_back(loss.detach());
      }
      residency.end_pass();
    }
    const at::NoGradGuard no_grad;
    residency.drop();
    for (std::size_t i = 0; i < model.parameters.size(); ++i) {
      Tensor& parameter = model.parameters[i];
      const Tensor gradient =
          parameter.grad().defined() ? parameter.grad().to_dense() : at::zeros_like(source.values[i]);
      result.gradients.push_back(gradient.clone());
      source.values[i].sub_(gradient, kRate);
      parameter.mutable_grad().reset();
      if (residency.stays(i)) {
        parameter.copy_(source.values[i]);
      } else {  // nothing but the source has the values
        EXPECT_EQ(parameter.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get(), nullptr);
      }
    }
  }
  return result;
}

void expect_same(const std::vector<Tensor>& seen, const std::vector<Tensor>& expected, const char* what) {
  ASSERT_EQ(seen.size(), expected.size());
  for (std::size_t i = 0; i < seen.size(); ++i) {
    EXPECT_TRUE(seen[i].equal(expected[i])) << what << ' ' << i << ":\n" << seen[i] << '\n' << expected[i];
  }
}

Tensor leaf(at::IntArrayRef sizes) { return torch::randn(sizes).requires_grad_(); }

template <class M>
std::shared_ptr<M> share(nn::ModuleHolder<M> holder) {
  return holder.ptr();
}

/// A module with some input, and what makes a scalar of its output.
template <class M>
Plain of_module(std::shared_ptr<M> module, std::function<Tensor(M&)> loss) {
  return {module->parameters(), [module, loss = std::move(loss)] { return loss(*module); }};
}

struct Square final : torch::autograd::Function<Square> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const Tensor& w) {
    context->save_for_backward({x, w});
    return x * w * w;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list outputs) {
    const auto saved = context->get_saved_variables();
    return {outputs[0] * saved[1] * saved[1], (outputs[0] * 2 * saved[0] * saved[1]).sum(0)};
  }
};

/// Runs f without a graph, and again in backward.
struct Checkpoint final : torch::autograd::Function<Checkpoint> {
  using Body = std::function<Tensor(const Tensor&)>;
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const Body* body) {
    context->save_for_backward({x});
    context->saved_data["body"] = reinterpret_cast<std::int64_t>(body);
    const at::NoGradGuard no_grad;
    return (*body)(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list outputs) {
    const auto* body = reinterpret_cast<const Body*>(context->saved_data["body"].toInt());
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const at::AutoGradMode with_grad(true);
    const Tensor y = (*body)(x);
    torch::autograd::backward({y}, {outputs[0]});
    return {x.grad(), Tensor()};
  }
};

Plain one_weight(at::IntArrayRef sizes, std::function<Tensor(const Tensor& w)> loss) {
  const Tensor w = leaf(sizes);
  return {{w}, [w, loss = std::move(loss)] { return loss(w); }};
}

std::vector<Kind> kinds() {
  std::vector<Kind> list;
  const auto add = [&](const char* name, std::function<Plain()> make) { list.push_back({name, std::move(make)}); };
  const auto x = [](at::IntArrayRef sizes) {
    return torch::linspace(-1, 1, c10::multiply_integers(sizes)).view(sizes);
  };

  add("linear", [x] {
    return of_module<nn::SequentialImpl>(share(nn::Sequential(nn::Linear(4, 5), nn::ReLU(), nn::Linear(5, 3))),
                                         [x](auto& m) {
                                           return m.forward(x({2, 4})).pow(2).sum();
                                         });
  });
  add("tied_weights", [x] {
    const Tensor w = leaf({7, 4});
    const Tensor ids = torch::tensor({1, 3, 3, 6});
    return Plain{{w}, [=] { return torch::linear(torch::embedding(w, ids), w).logsumexp(-1).sum(); }};
  });
  add("used_twice", [x] {
    return one_weight({3, 3}, [x](const Tensor& w) { return x({2, 3}).mm(w).tanh().mm(w).sum(); });
  });
  add("custom_function", [x] {
    return one_weight({5}, [x](const Tensor& w) { return Square::apply(x({2, 5}), w).sin().sum(); });
  });
  add("double_backward", [x] {
    return one_weight({4, 4}, [x](const Tensor& w) {
      const Tensor y = x({3, 4}).mm(w).tanh().sum();
      const Tensor g = torch::autograd::grad({y}, {w}, {}, true, true)[0];
      return g.pow(2).sum() + y;
    });
  });
  add("hessian_vector_product", [x] {
    const Tensor w = leaf({4, 2}), v = torch::randn({4, 2});
    return Plain{{w}, [=] {
                   const Tensor y = x({3, 4}).mm(w).pow(3).sum();
                   const Tensor g = torch::autograd::grad({y}, {w}, {}, true, true)[0];
                   return (g * v).sum();
                 }};
  });
  add("embedding", [] {
    return one_weight({9, 3}, [](const Tensor& w) {
      return torch::embedding(w, torch::tensor({{0, 8, 8}, {2, 2, 2}})).pow(2).sum();
    });
  });
  add("sparse_embedding", [] {
    return one_weight({9, 3}, [](const Tensor& w) {
      return torch::embedding(w, torch::tensor({1, 1, 4}), -1, false, true).pow(2).sum();
    });
  });
  add("embedding_bag", [] {
    return of_module<nn::EmbeddingBagImpl>(share(nn::EmbeddingBag(8, 3)), [](auto& m) {
      return m.forward(torch::tensor({1, 2, 5, 5}), torch::tensor({0, 2})).pow(2).sum();
    });
  });
  add("attention_over_weights", [x] {
    const Tensor k = leaf({6, 4}), v = leaf({6, 4});
    return Plain{{k, v}, [=] {
                   return at::scaled_dot_product_attention(x({1, 1, 3, 4}), k.view({1, 1, 6, 4}), v.view({1, 1, 6, 4}))
                       .pow(2)
                       .sum();
                 }};
  });
  add("multihead_attention", [x] {
    return of_module<nn::MultiheadAttentionImpl>(share(nn::MultiheadAttention(4, 2)), [x](auto& m) {
      const Tensor q = x({3, 1, 4});
      return std::get<0>(m.forward(q, q, q)).pow(2).sum();
    });
  });
  add("lstm", [x] {
    return of_module<nn::LSTMImpl>(share(nn::LSTM(nn::LSTMOptions(3, 4).num_layers(2).bidirectional(true))),
                                   [x](auto& m) {
                                     return std::get<0>(m.forward(x({5, 2, 3}))).pow(2).sum();
                                   });
  });
  add("gru", [x] {
    return of_module<nn::GRUImpl>(share(nn::GRU(3, 4)), [x](auto& m) {
      return std::get<0>(m.forward(x({5, 2, 3}))).pow(2).sum();
    });
  });
  add("gru_cell", [x] {
    return of_module<nn::GRUCellImpl>(share(nn::GRUCell(3, 4)), [x](auto& m) {
      return m.forward(x({2, 3})).pow(2).sum();
    });
  });
  add("transformer_encoder", [x] {
    const nn::TransformerEncoderLayer layer(nn::TransformerEncoderLayerOptions(4, 2).dim_feedforward(8).dropout(0.1));
    return of_module<nn::TransformerEncoderImpl>(share(nn::TransformerEncoder(layer, 2)), [x](auto& m) {
      return m.forward(x({5, 2, 4})).pow(2).sum();
    });
  });
  add("convolution_and_batch_norm", [x] {
    return of_module<nn::SequentialImpl>(
        share(nn::Sequential(nn::Conv2d(2, 3, 3), nn::BatchNorm2d(3), nn::ReLU(), nn::ConvTranspose2d(3, 2, 2))),
        [x](auto& m) {
          return m.forward(x({2, 2, 6, 6})).pow(2).sum();
        });
  });
  add("channels_last", [x] {
    const Tensor w = torch::randn({3, 2, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
    return Plain{{w}, [=] { return torch::conv2d(x({1, 2, 5, 5}), w).pow(2).sum(); }};
  });
  add("layer_and_group_norm", [x] {
    return of_module<nn::SequentialImpl>(
        share(nn::Sequential(nn::LayerNorm(nn::LayerNormOptions({6})), nn::GroupNorm(2, 4), nn::Linear(6, 2))),
        [x](auto& m) {
          return m.forward(x({2, 4, 6})).pow(2).sum();
        });
  });
  add("einsum", [x] {
    return one_weight({3, 4, 2}, [x](const Tensor& w) {
      return torch::einsum("bi,ijk->bjk", {x({2, 3}), w}).pow(2).sum();
    });
  });
  add("bilinear", [x] {
    return of_module<nn::BilinearImpl>(share(nn::Bilinear(3, 2, 4)), [x](auto& m) {
      return m.forward(x({2, 3}), x({2, 2})).pow(2).sum();
    });
  });
  add("prelu_and_weight_norm", [x] {
    const Tensor v = leaf({4, 3}), g = leaf({4, 1}), a = leaf({1});
    return Plain{{v, g, a}, [=] { return torch::prelu(torch::linear(x({2, 3}), at::_weight_norm(v, g, 0)), a).sum(); }};
  });
  add("autocast_with_its_cache", [x] {
    const Tensor w = leaf({4, 4});
    return Plain{{w}, [=] {
                   at::autocast::set_autocast_enabled(at::kCPU, true);
                   at::autocast::set_autocast_cache_enabled(true);
                   at::autocast::increment_nesting();
                   const Tensor y = torch::linear(torch::linear(x({2, 4}), w), w);
                   if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
                   at::autocast::set_autocast_enabled(at::kCPU, false);
                   return y.to(at::kFloat).pow(2).sum();
                 }};
  });
  add("non_contiguous_leaf", [x] {
    const Tensor w = torch::randn({4, 3}).t().requires_grad_();
    return Plain{{w}, [=] { return x({2, 3}).mm(w).pow(2).sum(); }};
  });
  add("leaves_of_one_buffer", [x] {
    const Tensor buffer = torch::randn({10});
    const Tensor a = buffer.narrow(0, 0, 6).view({2, 3}).detach().requires_grad_();
    const Tensor b = buffer.narrow(0, 6, 4).detach().requires_grad_();
    return Plain{{a, b}, [=] { return (x({4, 2}).mm(a).sum(1) * b).pow(2).sum(); }};
  });
  add("a_buffer_that_holds_more", [x] {
    const Tensor buffer = torch::randn({10});
    const Tensor w = buffer.narrow(0, 2, 6).detach().requires_grad_();
    return Plain{{w}, [=] { return (x({6}) * w).pow(2).sum() + buffer[0] * 0; }};
  });
  add("scalar_parameter", [x] { return one_weight({}, [x](const Tensor& w) { return (x({3}) * w).pow(2).sum(); }); });
  add("chunk_and_split", [x] {
    return one_weight({6, 4}, [x](const Tensor& w) {
      const auto thirds = w.chunk(3);
      const auto halves = w.split(2, 1);
      return x({2, 4}).mm(thirds[0].t()).pow(2).sum() + halves[1].sin().sum() + thirds[2].cos().sum();
    });
  });
  add("select_and_index", [x] {
    return one_weight({4, 3}, [](const Tensor& w) {
      return w.select(0, 1).pow(2).sum() + w.index({torch::tensor({0, 3})}).sin().sum() + w[2][1] * 3;
    });
  });
  add("as_strided", [x] {
    return one_weight({12}, [](const Tensor& w) { return w.as_strided({3, 2}, {4, 1}, 1).pow(3).sum(); });
  });
  add("views_made_before_a_drop", [x] {
    return one_weight({4, 4}, [x](const Tensor& w) {
      const Tensor t = w.t(), flat = w.reshape({-1}), column = w.t().reshape({-1}), diagonal = w.diagonal();
      const Tensor y = x({2, 4}).mm(w);  // after which w is away
      return y.mm(t).sum() + flat.sin().sum() + column.cos().sum() + diagonal.pow(2).sum();
    });
  });
  add("reshape_and_contiguous", [x] {
    return one_weight({3, 4}, [](const Tensor& w) {
      return w.t().contiguous().flatten().pow(2).sum() + w.reshape({2, 6}).sin().sum() + w.to(at::kDouble).cos().sum();
    });
  });
  add("tensor_lists", [x] {
    const Tensor a = leaf({2, 3}), b = leaf({2, 3});
    return Plain{{a, b}, [=] { return torch::cat({a, b}).sin().sum() + torch::stack({b, a}).pow(2).sum(); }};
  });
  add("optional_tensor_lists", [x] {
    const Tensor w = leaf({5, 4});
    return Plain{{w}, [=] {
                   using torch::indexing::Slice;
                   return w.index({Slice(), torch::tensor({0, 2})}).pow(2).sum();
                 }};
  });
  add("where_and_masked", [x] {
    return one_weight({6}, [x](const Tensor& w) {
      return torch::where(x({6}) > 0, w, w * 2).sum() + w.masked_select(x({6}) > 0.3).pow(2).sum();
    });
  });
  add("in_place_on_a_copy", [x] {
    return one_weight({6}, [](const Tensor& w) {
      Tensor copy = w.clone();
      copy.mul_(2).add_(1);
      return copy.pow(2).sum();
    });
  });
  add("decisions_by_value", [x] {
    return one_weight({6}, [](const Tensor& w) {
      const double first = w[0].item<double>();
      return (first > 0 ? w.sin() : w.cos()).sum() + w.max() + std::get<0>(w.topk(2)).sum();
    });
  });
  add("script", [x] {
    const auto unit = torch::jit::compile(R"(
      def f(x, w, b):
          y = torch.linear(x, w, b)
          for i in range(2):
              y = torch.tanh(y) @ w
          return (y * y).sum()
    )");
    const Tensor w = leaf({4, 4}), b = leaf({4});
    return Plain{{w, b}, [=] { return unit->run_method("f", x({2, 4}), w, b).toTensor(); }};
  });
  add("reentrant_checkpoint", [x] {
    const Tensor w = leaf({4, 4}), v = leaf({4, 4});
    const auto body = std::make_shared<Checkpoint::Body>([=](const Tensor& h) { return h.mm(w).tanh().mm(w); });
    return Plain{{w, v}, [=] {
                   const Tensor h = x({2, 4}).mm(v);
                   return Checkpoint::apply(Checkpoint::apply(h, body.get()), body.get()).mm(w).pow(2).sum();
                 }};
  });
  add("two_threads", [x] {
    const Tensor w = leaf({8, 8});
    return Plain{{w}, [=] {
                   Tensor left, right;
                   const at::ThreadLocalState state;
                   std::thread other([&] {
                     const at::ThreadLocalStateGuard guard(state);
                     right = x({2, 8}).mm(w).sin();
                   });
                   left = x({2, 8}).mm(w).cos();
                   other.join();
                   return (left * right).sum();
                 }};
  });
  add("dropout_and_random", [x] {
    return one_weight({6, 6}, [x](const Tensor& w) {
      return torch::dropout(x({3, 6}).mm(w), 0.5, true).sum() + (torch::rand_like(w) * w).sum();
    });
  });
  add("cross_entropy_and_smoothing", [x] {
    const Tensor w = leaf({5, 4}), weight = leaf({5});
    return Plain{
        {w}, [=] {
          return torch::cross_entropy_loss(torch::linear(x({3, 4}), w), torch::tensor({0, 4, 2}), {}, 1, -100, 0.1);
        }};
  });
  add("unused", [x] {
    const Tensor w = leaf({3}), unused = leaf({4});
    return Plain{{w, unused}, [=] { return w.pow(2).sum(); }};
  });
  return list;
}

struct Policy {
  const char* name;
  ResidencyLimits limits;
};

class KindOfUse : public testing::TestWithParam<std::tuple<int, int>> {};

const std::vector<Policy>& policies() {
  static const std::vector<Policy> list = {
      {"DropsAfterEveryOperator", {.max_live = 0, .max_reuse_distance = 0, .prefetch = 0}},
      {"FetchesAheadAndDrops", {.max_live = 1'000'000, .max_reuse_distance = 0, .prefetch = 20}},
      {"KeepsSome", {.max_live = 40, .max_reuse_distance = 30, .prefetch = 1'000}},
      {"KeepsAll", {}}};
  return list;
}

TEST_P(KindOfUse, TrainsAsThePlainModel) {
  const Kind kind = kinds()[static_cast<std::size_t>(std::get<0>(GetParam()))];
  const Policy& policy = policies()[static_cast<std::size_t>(std::get<1>(GetParam()))];
  const Trained plain = train_plain(kind), resident = train_resident(kind, policy.limits);
  expect_same(resident.losses, plain.losses, "loss");
  expect_same(resident.gradients, plain.gradients, "gradient");
}

INSTANTIATE_TEST_SUITE_P(Residency, KindOfUse,
                         testing::Combine(testing::Range(0, static_cast<int>(kinds().size())),
                                          testing::Range(0, static_cast<int>(policies().size()))),
                         [](const auto& info) {
                           return std::string(kinds()[static_cast<std::size_t>(std::get<0>(info.param))].name) + "_" +
                                  policies()[static_cast<std::size_t>(std::get<1>(info.param))].name;
                         });

/// A linear layer whose weight is away.
struct Away {
  Tensor w = leaf({3, 3});
  CopySource source{{w}};
  ParameterResidency residency{{{"blocks.0.weight", w}}, source, {}};
  Away() { residency.drop(); }
};

template <class Call>
std::string thrown_by(Call&& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Residency, SaysWhatAWriteWouldLose) {
  Away away;
  const InterceptorScope scope(away.residency);
  const at::NoGradGuard no_grad;
  EXPECT_THAT(thrown_by([&] { away.w.mul_(2); }),
              testing::AllOf(HasSubstr("aten::mul_"), HasSubstr("'blocks.0.weight'"), HasSubstr("gather")));
  EXPECT_THAT(thrown_by([&] {
                at::mm_out(away.w, at::ones({3, 3}), at::ones({3, 3}));
              }),
              HasSubstr("'blocks.0.weight'"));
  EXPECT_TRUE(at::mm(at::eye(3), away.w).equal(away.source.values[0]));
}

TEST(Residency, SaysSoToWhoReadsTheMemoryItself) {
  Away away;
  EXPECT_THAT(thrown_by([&] { away.w.data_ptr(); }), HasSubstr("'blocks.0.weight'"));
  EXPECT_THAT(thrown_by([&] { away.w.data_ptr<float>(); }), HasSubstr("gather"));
  EXPECT_THAT(thrown_by([&] { (void)away.w.const_data_ptr<float>(); }), HasSubstr("gather"));
  std::ostringstream out;
  EXPECT_THAT(thrown_by([&] { torch::save(away.w, out); }), HasSubstr("'blocks.0.weight'"));
  EXPECT_THAT(thrown_by([&] { away.w.mul(2); }), HasSubstr("'blocks.0.weight'"));  // no scope: as in a bare thread
}

TEST(Residency, HoldsParametersForOtherCode) {
  Away away;
  away.residency.hold({0});
  EXPECT_EQ(away.w.data_ptr<float>()[4], away.source.values[0].data_ptr<float>()[4]);
  {
    const InterceptorScope scope(away.residency);
    const at::NoGradGuard no_grad;
    away.w.mul_(2);  // may be written now
    EXPECT_TRUE(away.w.equal(away.source.values[0] * 2));
  }
  away.residency.let_go({0});
  EXPECT_THAT(thrown_by([&] { away.w.data_ptr(); }), HasSubstr("gather"));
}

TEST(Residency, PassesOnWhatAFailedFetchSays) {
  Away away;
  away.source.fails = true;
  {
    const InterceptorScope scope(away.residency);
    EXPECT_EQ(thrown_by([&] { at::mm(away.w, away.w); }), "rank 1 is gone");
  }
  away.source.fails = false;
  const InterceptorScope scope(away.residency);
  EXPECT_TRUE(at::mm(at::eye(3), away.w).equal(away.source.values[0]));
}

TEST(Residency, AFetchThatFailedOnceLeavesNoWrongValues) {
  const Tensor buffer = torch::randn({10});
  const std::vector<Tensor> weights = {torch::randn({4, 3}).t().requires_grad_(),
                                       buffer.narrow(0, 0, 6).view({2, 3}).detach().requires_grad_(),
                                       buffer.narrow(0, 6, 4).detach().requires_grad_()};
  CopySource source(weights);
  ParameterResidency residency(named(weights), source, {});
  residency.drop();
  const InterceptorScope scope(residency);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    source.fails = true;
    EXPECT_EQ(thrown_by([&] { weights[i].clone(); }), "rank 1 is gone");
    source.fails = false;
    EXPECT_TRUE(weights[i].clone().reshape({-1}).equal(source.values[i].view({-1}))) << i;
  }
}

TEST(Residency, NothingOfAFetchWhoseWaitFailedIsTakenForArrived) {
  const std::vector<Tensor> weights = {leaf({3, 3}), leaf({3, 3})};
  CopySource source(weights);
  ParameterResidency residency(named(weights), source, {});
  residency.drop();
  const InterceptorScope scope(residency);
  const at::NoGradGuard no_grad;
  source.lost = 1;
  EXPECT_EQ(thrown_by([&] { at::mm(weights[0], weights[1]); }), "rank 1 was lost");
  source.lost = std::numeric_limits<ParameterSource::Ticket>::max();
  EXPECT_TRUE(at::mm(weights[0], weights[1]).equal(at::mm(source.values[0], source.values[1])));
}

/// Loses one fetch alone; what was asked for after it comes.
class LosesOne final : public ParameterSource {
 public:
  explicit LosesOne(const std::vector<Tensor>& parameters) : source(parameters) {}
  Ticket fetch(const std::string& what, std::vector<Request> requests) override {
    return source.fetch(what, std::move(requests));
  }
  void wait(Ticket ticket) override {
    if (ticket == lost) throw std::runtime_error("rank 1 was lost");
    source.wait(ticket);
  }
  CopySource source;
  Ticket lost = 0;
};

TEST(Residency, KeepsWhatIsUnderWayWhenAnEarlierFetchWasLost) {
  const std::vector<Tensor> weights = {leaf({3, 3}), leaf({3, 3})};
  LosesOne source(weights);
  ParameterResidency residency(named(weights), source, {.max_live = 100, .max_reuse_distance = 0, .prefetch = 9});
  residency.drop();
  const InterceptorScope scope(residency);
  const at::NoGradGuard no_grad;
  const auto pass = [&](const auto& use_first) {
    residency.begin_pass(ParameterResidency::Pass::kEvaluation);
    use_first();
    EXPECT_TRUE(weights[1].clone().equal(source.source.values[1]));
    residency.end_pass();
  };
  pass([&] { weights[0].clone(); });
  source.source.fetched.clear();
  source.lost = 3;
  pass([&] { EXPECT_EQ(thrown_by([&] { weights[0].clone(); }), "rank 1 was lost"); });
  EXPECT_THAT(source.source.fetched, testing::ElementsAre("p0", "p1"));  // p1 ahead, and once
}

TEST(Residency, AFetchThatFailsLeavesNothingPinned) {
  const std::vector<Tensor> weights = {leaf({3, 3}), leaf({3, 3})};
  CopySource source(weights);
  ParameterResidency residency(named(weights), source, {});
  residency.drop();
  residency.hold({0});
  source.lost = 2;
  {
    const InterceptorScope scope(residency);
    const at::NoGradGuard no_grad;
    EXPECT_EQ(thrown_by([&] { at::mm(weights[0], weights[1]); }), "rank 1 was lost");
  }
  EXPECT_EQ(thrown_by([&] { residency.hold({0, 1}); }), "rank 1 was lost");
  residency.let_go({0});
  EXPECT_THAT(thrown_by([&] { weights[0].data_ptr(); }), HasSubstr("'p0' are not here"));
}

TEST(Residency, RefusesAWriteWhileAnotherThreadsOperatorReads) {
  Away away;
  const auto mm = c10::Dispatcher::singleton().findSchemaOrThrow("aten::mm", "");
  OperatorStack operands{at::eye(3), away.w};
  away.residency.before(mm, operands, 2);
  std::thread other([&] {
    const InterceptorScope scope(away.residency);
    const at::NoGradGuard no_grad;
    EXPECT_THAT(thrown_by([&] { away.w.mul_(2); }),
                testing::AllOf(HasSubstr("aten::mul_ writes parameter 'blocks.0.weight'"), HasSubstr("would be lost")));
  });
  other.join();
  away.residency.after(mm);
}

TEST(Residency, FetchesAheadInOneCall) {
  std::vector<Tensor> weights;
  for (int i = 0; i < 6; ++i) weights.push_back(leaf({2, 2}));
  CopySource source(weights);
  ParameterResidency residency(named(weights), source, {.max_live = 100, .max_reuse_distance = 0, .prefetch = 12});
  residency.drop();
  const auto pass = [&] {
    source.fetched.clear();
    residency.begin_pass(ParameterResidency::Pass::kEvaluation);
    const InterceptorScope scope(residency);
    const at::NoGradGuard no_grad;
    Tensor x = at::eye(2);
    for (const Tensor& w : weights) x = x.mm(w);
    residency.end_pass();
    return source.fetched;
  };
  EXPECT_THAT(pass(), testing::ElementsAre("p0", "p1", "p2", "p3", "p4", "p5"));
  EXPECT_THAT(pass(), testing::ElementsAre("p0", "p1, p2, p3", "p4, p5"));
}

}  // namespace
}  // namespace capstan
