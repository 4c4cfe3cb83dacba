#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <functional>
#include <optional>
#include <thread>

#include "core/memory/residency.hpp"
#include "tests/core/memory/copy_source.hpp"
#include "tests/core/memory/recompute/region_run.hpp"

namespace capstan {
namespace {

namespace nn = torch::nn;
using at::Tensor;

using Body = std::function<Tensor(const Tensor&)>;
/// Runs layer i of a model.
using RunLayer = std::function<Tensor(int i, const Tensor& hidden, const Body& body)>;

constexpr int kLayers = 3;

/// A model of kLayers layers.
struct Layered {
  std::vector<Tensor> parameters, buffers;
  std::function<Tensor(const RunLayer&)> loss;
};

struct Kind {
  const char* name;
  std::function<Layered()> make;
  bool residency = true;  // can be trained with parameters that come and go
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

/// How the layers run.
struct Way {
  const char* name;
  int every = 0;  // layers of a region; 0: none is computed again
  std::vector<const char*> keep = {};
  bool residency = false;
};

struct Seen {
  std::vector<Tensor> losses, gradients, buffers, draws;
};

Seen train(const Kind& kind, const Way& way) {
  torch::manual_seed(7);
  Layered model = kind.make();
  std::optional<CopySource> source;
  std::optional<ParameterResidency> residency;
  if (way.residency) {
    source.emplace(model.parameters);
    residency.emplace(named(model.parameters), *source, ResidencyLimits{.max_live = 1, .max_reuse_distance = 1});
    residency->drop();
  }
  Recomputation recomputation;
  std::vector<capstan_str> keep;
  for (const char* name : way.keep) keep.push_back(as_str(name));
  const RunLayer run = [&](int i, const Tensor& hidden, const Body& body) {
    if (way.every == 0) return body(hidden);
    capstan_recompute how{sizeof how};
    how.check = 1;
    how.keep = keep.data();
    how.keep_count = keep.size();
    how.joins = i % way.every != 0;
    how.stays_open = i % way.every != way.every - 1 && i != kLayers - 1;
    return run_region(recomputation, "blocks." + std::to_string(i), hidden, body, how);
  };
  Seen seen;
  for (int step = 0; step < 2; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      if (residency) residency->begin_pass(ParameterResidency::Pass::kTraining);
      {
        std::optional<InterceptorScope> scope;
        if (residency) scope.emplace(*residency);
        recomputation.begin_forward({.inside = residency ? &*residency : nullptr}, false);
        const Tensor loss = model.loss(run);
        recomputation.end_forward();
        loss.backward();
        seen.losses.push_back(loss.detach());
      }
      if (residency) residency->end_pass();
      seen.draws.push_back(torch::rand({1}));
    }
    const at::NoGradGuard no_grad;
    if (residency) residency->drop();
    for (std::size_t i = 0; i < model.parameters.size(); ++i) {
      Tensor& parameter = model.parameters[i];
      Tensor& values = residency ? source->values[i] : parameter;
      const Tensor gradient = parameter.grad().defined() ? parameter.grad() : at::zeros_like(values);
      seen.gradients.push_back(gradient.clone());
      values.sub_(gradient, 0.01);
      parameter.mutable_grad().reset();
    }
    for (const Tensor& buffer : model.buffers) seen.buffers.push_back(buffer.clone());
  }
  return seen;
}

void expect_same(const std::vector<Tensor>& seen, const std::vector<Tensor>& expected, const char* what) {
  ASSERT_EQ(seen.size(), expected.size());
  for (std::size_t i = 0; i < seen.size(); ++i) {
    EXPECT_TRUE(seen[i].equal(expected[i])) << what << ' ' << i << " of " << seen.size() << ", by at most "
                                            << (seen[i] - expected[i]).abs().max().item<double>();
  }
}

Tensor input(at::IntArrayRef sizes) { return torch::linspace(-1, 1, c10::multiply_integers(sizes)).view(sizes); }

/// Every layer has a square weight; `body(w, i, x)` is what it computes.
Layered of_weights(std::int64_t d, const std::function<Tensor(const Tensor&, int, const Tensor&)>& body) {
  std::vector<Tensor> weights;
  for (int i = 0; i < kLayers; ++i) weights.push_back((torch::randn({d, d}) / std::sqrt(d)).requires_grad_());
  return {weights, {}, [=](const RunLayer& run) {
            Tensor x = input({2, 4, d});
            for (int i = 0; i < kLayers; ++i) {
              const Tensor w = weights[static_cast<std::size_t>(i)];
              // The closure dies before backward.
              x = run(i, x, [&](const Tensor& h) { return body(w, i, h); });
            }
            return x.pow(2).mean();
          }};
}

template <class M>
Layered of_modules(const std::function<nn::ModuleHolder<M>()>& make,
                   const std::function<Tensor(M&, const Tensor&)>& body, at::IntArrayRef sizes) {
  std::vector<std::shared_ptr<M>> modules;
  Layered model;
  for (int i = 0; i < kLayers; ++i) {
    modules.push_back(make().ptr());
    for (const Tensor& parameter : modules.back()->parameters()) model.parameters.push_back(parameter);
    for (const Tensor& buffer : modules.back()->buffers()) model.buffers.push_back(buffer);
  }
  model.loss = [modules, body, shape = sizes.vec()](const RunLayer& run) {
    Tensor x = input(shape);
    for (int i = 0; i < kLayers; ++i) {
      x = run(i, x, [&](const Tensor& h) { return body(*modules[static_cast<std::size_t>(i)], h); });
    }
    return x.pow(2).mean();
  };
  return model;
}

struct Cubed final : torch::autograd::Function<Cubed> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const Tensor& w) {
    const Tensor product = x.matmul(w);
    context->save_for_backward({x, w, product});
    return product * product * product;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list outputs) {
    const auto saved = context->get_saved_variables();
    const Tensor g = outputs[0] * 3 * saved[2] * saved[2];
    return {g.matmul(saved[1].t()), saved[0].flatten(0, -2).t().matmul(g.flatten(0, -2))};
  }
};

Tensor attention(const Tensor& w, const Tensor& x, double dropout) {
  const Tensor q = x.matmul(w).unsqueeze(1);
  return at::scaled_dot_product_attention(q, q.sin(), x.unsqueeze(1), {}, dropout, true).squeeze(1);
}

std::vector<Kind> kinds() {
  std::vector<Kind> list;
  const auto add = [&](const char* name, std::function<Layered()> make, bool residency = true) {
    list.push_back({name, std::move(make), residency});
  };
  add("dropout", [] {
    return of_weights(8, [](const Tensor& w, int, const Tensor& x) {
      const Tensor y = torch::dropout(attention(w, torch::layer_norm(x, {8}), 0.0), 0.1, true) + x;
      return torch::dropout(torch::gelu(y.matmul(w.t()), "tanh"), 0.5, true) + y;
    });
  });
  add("dropout_in_attention",
      [] { return of_weights(8, [](const Tensor& w, int, const Tensor& x) { return attention(w, x, 0.2) + x; }); });
  add("captured_result", [] {
    const Tensor w = leaf({4, 4}), v = leaf({4, 4});
    return Layered{{w, v}, {}, [=](const RunLayer& run) {
                     const Tensor shared = input({2, 4}).matmul(v).tanh();
                     Tensor x = input({2, 4});
                     for (int i = 0; i < kLayers; ++i) {
                       x = run(i, x, [&](const Tensor& h) { return (h.matmul(w) * shared).sin() + shared; });
                     }
                     return x.pow(2).sum();
                   }};
  });
  add("custom_function", [] {
    return of_weights(4, [](const Tensor& w, int, const Tensor& x) { return Cubed::apply(x.sin(), w).tanh() + x; });
  });
  add("tied_weights", [] {
    const Tensor table = leaf({7, 4}), w = leaf({4, 4});
    return Layered{{table, w}, {}, [=](const RunLayer& run) {
                     Tensor x = torch::embedding(table, torch::tensor({1, 3, 3, 6}));
                     for (int i = 0; i < kLayers; ++i) {
                       x = run(i, x, [&](const Tensor& h) { return torch::linear(h, w).tanh().mm(w) + h; });
                     }
                     return torch::linear(x, table).logsumexp(-1).sum();
                   }};
  });
  add("in_place", [] {
    return of_weights(4, [](const Tensor& w, int, const Tensor& x) {
      Tensor y = x.matmul(w);
      y.add_(x).mul_(0.5);
      y.relu_();
      Tensor z = y.clone();
      z.slice(-1, 0, 2).mul_(y.slice(-1, 2, 4));
      z.masked_fill_(z > 1.5, 0.25);
      Tensor out = torch::empty({0});
      at::mul_out(out, z.detach(), z.detach());
      z.select(-1, 3).copy_(out.select(-1, 0));
      Tensor parts = torch::zeros_like(z);
      parts.narrow(-1, 0, 2).copy_(z.narrow(-1, 1, 2));
      return parts.sin().mul_(2).add_(z).tanh_();
    });
  });
  add("changes_what_it_was_given", [] {
    return of_weights(4, [](const Tensor& w, int i, const Tensor& x) {
      Tensor y = i == 0 ? x.clone() : x;
      const Tensor before = y * 3;
      y.add_(before.sin());
      return y.matmul(w);
    });
  });
  add("batch_norm", [] {
    return of_modules<nn::SequentialImpl>(
        [] {
          return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(2, 2, 3).padding(1)), nn::BatchNorm2d(2), nn::ReLU());
        },
        [](nn::SequentialImpl& m, const Tensor& x) { return m.forward(x); }, {2, 2, 4, 4});
  });
  add("counters", [] {
    const Tensor count = torch::ones({1}), w = leaf({4, 4});
    return Layered{{w}, {count}, [=](const RunLayer& run) {
                     Tensor x = input({2, 4});
                     for (int i = 0; i < kLayers; ++i) {
                       x = run(i, x, [&](const Tensor& h) {
                         const Tensor y = (h.matmul(w) + count).sin();
                         const_cast<Tensor&>(count).add_(1);
                         return y.tanh() * count.log();
                       });
                     }
                     return x.sum();
                   }};
  });
  add("autocast", [] {
    const Tensor w = leaf({8, 8}), v = leaf({8, 8});
    return Layered{{w, v}, {}, [=](const RunLayer& run) {
                     at::autocast::set_autocast_enabled(at::kCPU, true);
                     at::autocast::set_autocast_cache_enabled(true);
                     at::autocast::increment_nesting();
                     Tensor x = input({3, 8});
                     for (int i = 0; i < kLayers; ++i) {
                       x = run(i, x, [&](const Tensor& h) {
                         const Tensor y = torch::linear(torch::gelu(torch::linear(h, w)), v);
                         at::autocast::set_autocast_enabled(at::kCPU, false);  // a part in full precision
                         const Tensor z = torch::linear(y.to(at::kFloat), w).softmax(-1);
                         at::autocast::set_autocast_enabled(at::kCPU, true);
                         return torch::dropout(z, 0.3, true) + h;
                       });
                     }
                     if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
                     at::autocast::set_autocast_enabled(at::kCPU, false);
                     return x.to(at::kFloat).pow(2).sum();
                   }};
  });
  add("threads", [] {
    return of_weights(4, [](const Tensor& w, int, const Tensor& x) {
      Tensor y = x.matmul(w), other;
      const at::ThreadLocalState state;
      std::thread([&] {
        const at::ThreadLocalStateGuard guard(state);
        other = x.matmul(w.t()).tanh();
        y.add_(other);  // behind the back of the thread that records
      }).join();
      return y.sin() * other + x;
    });
  });
  add("script", [] {
    // Of its own for each run: the first calls of a script are run otherwise than later ones.
    const auto unit = torch::jit::compile(R"(
def f(x, w):
    y = torch.tanh(torch.matmul(x, w))
    parts = torch.chunk(y, 2, -1)
    for i in range(2):
        y = y + parts[0].sum() * torch.sigmoid(y)
    y += x
    return torch.layer_norm(y, [4])
)");
    return of_weights(4,
                      [unit](const Tensor& w, int, const Tensor& x) { return unit->run_method("f", x, w).toTensor(); });
  });
  add("lstm", [] {
    return of_modules<nn::LSTMImpl>([] { return nn::LSTM(nn::LSTMOptions(4, 4).num_layers(2).dropout(0.2)); },
                                    [](nn::LSTMImpl& m, const Tensor& x) { return std::get<0>(m.forward(x)); },
                                    {3, 2, 4});
  });
  add("gru_cell", [] {
    return of_modules<nn::GRUCellImpl>([] { return nn::GRUCell(4, 4); },
                                       [](nn::GRUCellImpl& m, const Tensor& x) { return m.forward(x, x.sin()); },
                                       {3, 4});
  });
  add("transformer_encoder", [] {
    return of_modules<nn::TransformerEncoderLayerImpl>(
        [] { return nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(4, 2).dim_feedforward(8)); },
        [](nn::TransformerEncoderLayerImpl& m, const Tensor& x) { return m.forward(x); }, {5, 2, 4});
  });
  add("takes_gradients_in_forward", [] {
    return of_weights(4, [](const Tensor& w, int, const Tensor& x) {
      const Tensor y = x.matmul(w).tanh();
      const Tensor energy = y.pow(3).sum();
      return torch::autograd::grad({energy}, {y}, {}, true, true)[0].sin() * y;
    });
  });
  add("raw_mask_in_empty_memory", [] {
    return of_weights(4, [](const Tensor& w, int i, const Tensor& x) {
      const Tensor mask = torch::empty({4});
      for (int k = 0; k < 4; ++k) mask.data_ptr<float>()[k] = static_cast<float>((k + i) % 2);
      return (x.matmul(w) * mask).sin() + torch::full_like(x, 0.5) * x;
    });
  });
  add("random_numbers", [] {
    return of_weights(4, [](const Tensor& w, int, const Tensor& x) {
      const Tensor y = x.matmul(w) + torch::rand({4});
      const Tensor picks = torch::multinomial(y.detach().flatten(0, 1).softmax(-1), 1).squeeze(-1);
      const Tensor noise = torch::empty_like(y).normal_() + torch::randn_like(y) * torch::rand_like(y, at::kFloat);
      return (y * noise.uniform_(0.5, 1.5)).tanh() +
             torch::one_hot(picks, 4).view_as(y) * torch::bernoulli(y.sigmoid());
    });
  });
  add("lists_and_indices", [] {
    return of_weights(4, [](const Tensor& w, int, const Tensor& x) {
      const Tensor y = torch::cat({x.matmul(w), x.sin()}, 1);
      Tensor z = torch::stack({y, y.cos()}).sum(0).index({at::indexing::Slice(), torch::tensor({0, 2, 5, 7})});
      z = z.index_put({torch::tensor({0, 1})}, x.mean(0));
      return torch::einsum("bti,ij->btj", {z, w}).tanh();
    });
  });
  add("no_gradient_within", [] {
    return of_weights(4, [](const Tensor& w, int, const Tensor& x) {
      Tensor scale;
      {
        const at::NoGradGuard no_grad;
        scale = x.matmul(w).abs().amax(-1, true).clamp_min(0.1);
      }
      return (x.matmul(w) / scale).tanh() + x.detach();
    });
  });
  add(
      "embedding_with_limited_norm",
      [] {
        const Tensor table = leaf({5, 4});
        return Layered{{table}, {}, [=](const RunLayer& run) {
                         Tensor x = input({3, 4});
                         for (int i = 0; i < kLayers; ++i) {
                           x = run(i, x, [&](const Tensor& h) {
                             const Tensor ids = torch::tensor({0, 4, i});
                             {
                               const at::NoGradGuard no_grad;
                               at::embedding_renorm_(const_cast<Tensor&>(table), ids, 1.0 - 0.1 * i, 2);
                             }
                             return torch::embedding(table.clone(), ids).sin() * h + h.tanh();
                           });
                         }
                         return x.sum();
                       }};
      },
      /*residency=*/false);
  add("regions_in_regions", [] {
    static Recomputation inner_regions;  // what capstan::checkpoint leads to within a layer
    return of_weights(4, [](const Tensor& w, int, const Tensor& x) {
      const Tensor y = run_region(inner_regions, "inner", x.sin(),
                                  [&](const Tensor& h) { return torch::dropout(h.matmul(w), 0.2, true).tanh(); });
      return y + run_region(inner_regions, "inner", y, [&](const Tensor& h) { return h.pow(2) * x; });
    });
  });
  return list;
}

class RecomputeTraining : public ::testing::TestWithParam<Kind> {};

TEST_P(RecomputeTraining, GivesTheBitsOfPlainTraining) {
  const Kind& kind = GetParam();
  const Way plain{"plain"};
  const Seen expected = train(kind, plain);
  std::vector<Way> ways = {{"every layer", 1},
                           {"two layers a region", 2},
                           {"attention kept", 1, {"scaled_dot_product_attention", "aten::gelu", "_softmax"}}};
  if (kind.residency) {
    ways.push_back({"every layer, parameters away", 1, {}, true});
    ways.push_back({"two layers a region, parameters away, attention kept", 2, {"scaled_dot_product_attention"}, true});
  }
  for (const Way& way : ways) {
    SCOPED_TRACE(way.name);
    const Seen seen = train(kind, way);
    expect_same(seen.losses, expected.losses, "loss");
    expect_same(seen.gradients, expected.gradients, "gradient");
    expect_same(seen.buffers, expected.buffers, "buffer");
    expect_same(seen.draws, expected.draws, "next random number");
  }
}

INSTANTIATE_TEST_SUITE_P(, RecomputeTraining, ::testing::ValuesIn(kinds()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace capstan
