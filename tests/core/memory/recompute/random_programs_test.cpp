// Layers made of random operators, with and without recomputation: the same output, gradients and draws.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <random>

#include "tests/core/memory/recompute/region_run.hpp"

namespace capstan {
namespace {

using at::Tensor;

constexpr std::int64_t kRows = 4, kColumns = 6;

/// What one step of a program works on: three values made before it, and trained matrices.
struct Operands {
  Tensor a, b, c;
  const std::vector<Tensor>& weights;
  std::size_t choice;

  const Tensor& weight() const { return weights[choice % weights.size()]; }
};

struct Step {
  const char* name;
  Tensor (*run)(const Operands&);
};

/// Each gives a tensor of [kRows, kColumns] of moderate size.
const Step kSteps[] = {
    {"matmul", [](const Operands& x) { return x.a.matmul(x.weight()); }},
    {"linear", [](const Operands& x) { return torch::linear(x.a, x.weight(), x.weight()[0]); }},
    {"add", [](const Operands& x) { return x.a + x.b; }},
    {"mul", [](const Operands& x) { return x.a * x.b.sigmoid(); }},
    {"gelu", [](const Operands& x) { return torch::gelu(x.a); }},
    {"tanh", [](const Operands& x) { return x.a.tanh(); }},
    {"softmax", [](const Operands& x) { return x.a.softmax(-1); }},
    {"layer_norm", [](const Operands& x) { return torch::layer_norm(x.a, {kColumns}, x.weight()[0], x.weight()[1]); }},
    {"dropout", [](const Operands& x) { return torch::dropout(x.a, 0.3, true); }},
    {"rand_like", [](const Operands& x) { return x.a * torch::rand_like(x.a); }},
    {"transposed copy", [](const Operands& x) { return x.a.t().contiguous().t(); }},
    {"views",
     [](const Operands& x) {
       return x.a.view({2, 2, kColumns}).flip(0).reshape({kRows, kColumns});
     }},
    {"split and cat",
     [](const Operands& x) {
       const std::vector<Tensor> halves = x.a.chunk(2, 1);
       return torch::cat({halves[1], x.b.narrow(1, 0, 3)}, 1);
     }},
    {"stack",
     [](const Operands& x) {
       return torch::stack({x.a, x.b, x.c}).mean(0);
     }},
    {"in place on a copy", [](const Operands& x) { return x.a.clone().mul_(0.5).add_(x.b); }},
    {"in place on a view",
     [](const Operands& x) {
       Tensor y = x.a.clone();
       y.narrow(1, 1, 2).copy_(x.b.narrow(1, 0, 2));
       y.select(0, 1).add_(x.c.select(0, 2));
       return y;
     }},
    {"in place after a save",
     [](const Operands& x) {
       Tensor y = x.a.clone();
       const Tensor z = y.tanh();  // saves its result, not y
       y.add_(1);
       return z + y;
     }},
    {"empty memory that is filled",
     [](const Operands& x) {
       Tensor y = torch::empty_like(x.a);
       y.copy_(x.a);
       return y * x.b.tanh();
     }},
    {"empty memory that is filled in parts",
     [](const Operands& x) {
       Tensor y = torch::empty({kRows, kColumns});
       y.narrow(0, 0, 2).copy_(x.a.narrow(0, 2, 2));
       y.narrow(0, 2, 2).copy_(x.b.narrow(0, 0, 2));
       return y.sin();
     }},
    {"mask without gradients",
     [](const Operands& x) {
       Tensor mask;
       {
         torch::NoGradGuard guard;
         mask = (x.b > 0).to(x.b.dtype());
       }
       return x.a * mask;
     }},
    {"where", [](const Operands& x) { return torch::where(x.a > x.b, x.a, x.c); }},
    {"detached", [](const Operands& x) { return x.a * x.b.detach().sigmoid(); }},
    {"max", [](const Operands& x) { return x.a - std::get<0>(x.a.max(1, true)); }},
    {"gather",
     [](const Operands& x) {
       return x.a.index_select(1, torch::tensor({5, 3, 1, 0, 2, 4})) + x.b.gather(1, std::get<1>(x.a.sort(1)));
     }},
    {"attention",
     [](const Operands& x) {
       const auto heads = [](const Tensor& y) { return y.view({kRows, 2, 3}).permute({1, 0, 2}).unsqueeze(0); };
       return torch::scaled_dot_product_attention(heads(x.a), heads(x.b), heads(x.c), {}, 0.2)
           .squeeze(0)
           .permute({1, 0, 2})
           .reshape({kRows, kColumns});
     }},
    {"buffer that is changed outside",
     [](const Operands& x) {
       static thread_local Tensor buffer;
       if (!buffer.defined()) buffer = torch::zeros({kColumns});
       torch::NoGradGuard guard;
       buffer.copy_(x.a.mean(0));
       return buffer.clone().expand({kRows, kColumns}).contiguous();
     }},
    {"double precision", [](const Operands& x) { return x.a.to(torch::kDouble).cos().to(torch::kFloat) * x.b; }},
};

/// A layer whose code is drawn from a seed. It may be run again with the same result.
class Program {
 public:
  Program(unsigned seed, std::size_t steps) {
    std::mt19937 random(seed);
    for (std::size_t i = 0; i < steps; ++i) {
      Line line{&kSteps[random() % std::size(kSteps)], {}, random()};
      for (std::size_t& operand : line.operands) operand = random() % (i + 1);
      line.operands[0] = random() % 2 ? i : line.operands[0];
      lines_.push_back(line);
    }
  }

  Tensor operator()(const Tensor& hidden, const std::vector<Tensor>& weights) const {
    std::vector<Tensor> values{hidden};
    for (const Line& line : lines_) {
      values.push_back(line.step->run(
          {values[line.operands[0]], values[line.operands[1]], values[line.operands[2]], weights, line.choice}));
    }
    return values.back();
  }

  std::string text() const {
    std::string text;
    for (const Line& line : lines_) {
      text += std::string("\n  ") + line.step->name;
      for (const std::size_t operand : line.operands) text += " " + std::to_string(operand);
    }
    return text;
  }

 private:
  struct Line {
    const Step* step;
    std::size_t operands[3];
    std::size_t choice;
  };
  std::vector<Line> lines_;
};

struct Result {
  std::vector<Tensor> tensors;  // the output, and gradients of the input and of all weights
  Tensor next_draw;             // of the generator, afterwards
};

/// Three layers, one after the other.
template <class RunLayer>
Result train(const std::vector<Program>& layers, RunLayer run_layer) {
  torch::manual_seed(7);
  Tensor hidden = torch::randn({kRows, kColumns}).requires_grad_();
  std::vector<Tensor> weights;
  for (int i = 0; i < 3; ++i) weights.push_back((torch::randn({kColumns, kColumns}) * 0.4).requires_grad_());
  const Tensor weighting = torch::randn({kRows, kColumns});

  Tensor x = hidden;
  for (const Program& layer : layers) {
    x = run_layer(x, [&](const Tensor& input) { return layer(input, weights); });
  }
  Result result;
  result.tensors.push_back(x.detach());
  std::vector<Tensor> inputs{hidden};
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  if (x.requires_grad()) {
    for (const Tensor& gradient :
         torch::autograd::grad({(x * weighting).sum()}, inputs, {}, {}, false, /*allow_unused=*/true)) {
      result.tensors.push_back(gradient);
    }
  }
  result.next_draw = torch::rand({4});
  return result;
}

void expect_equal(const Result& found, const Result& wanted, const std::string& where) {
  ASSERT_EQ(found.tensors.size(), wanted.tensors.size()) << where;
  for (std::size_t i = 0; i < wanted.tensors.size(); ++i) {
    ASSERT_EQ(found.tensors[i].defined(), wanted.tensors[i].defined()) << where << "\ntensor " << i;
    if (!wanted.tensors[i].defined()) continue;
    EXPECT_TRUE(torch::equal(found.tensors[i], wanted.tensors[i])) << where << "\ntensor " << i;
  }
  EXPECT_TRUE(torch::equal(found.next_draw, wanted.next_draw)) << where << "\nthe generator";
}

/// `joined`: all layers are one region.
Result recomputed(const std::vector<Program>& layers, bool joined) {
  Recomputation recomputation;
  recomputation.begin_forward({}, /*first=*/true);
  int index = 0;
  return train(layers, [&](const Tensor& x, const std::function<Tensor(const Tensor&)>& body) {
    capstan_recompute how{sizeof how};
    how.check = 1;
    const bool last = index + 1 == static_cast<int>(layers.size());
    if (joined) {
      how.joins = index > 0;
      how.stays_open = !last;
    }
    Tensor out = run_region(recomputation, "blocks." + std::to_string(index++), x, body, how);
    if (last) recomputation.end_forward();
    return out;
  });
}

TEST(RandomPrograms, GiveTheSameBitsWithRecomputation) {
  for (unsigned seed = 0; seed < 150; ++seed) {
    std::vector<Program> layers;
    std::string text = "seed " + std::to_string(seed);
    for (unsigned layer = 0; layer < 3; ++layer) {
      layers.emplace_back(3 * seed + layer, 3 + seed % 10);
      text += "\nlayer" + layers.back().text();
    }
    const Result wanted = train(layers, [](const Tensor& x, auto body) { return body(x); });
    try {
      expect_equal(recomputed(layers, false), wanted, text);
      expect_equal(recomputed(layers, true), wanted, text + "\none region");
    } catch (const std::exception& error) {
      ADD_FAILURE() << text << "\n" << error.what();
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace capstan
