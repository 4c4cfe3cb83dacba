#include <gmock/gmock.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <map>

#include "tests/core/memory/copy_source.hpp"
#include "tests/core/memory/recompute/region_run.hpp"

namespace capstan {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using Body = std::function<Tensor(const Tensor&)>;

/// Operators that break rules: one writes a tensor and does not say so, one fails when it is told to.
bool refuses = false;
Tensor count_up(const Tensor& x, const Tensor& counter) {
  counter.data_ptr<float>()[0] += 1;
  return x * counter.item<float>();
}
Tensor refuse(const Tensor& x) {
  if (refuses) throw std::runtime_error("refused");
  return x.clone();
}
TORCH_LIBRARY(capstan_test, m) {
  m.def("count_up(Tensor x, Tensor counter) -> Tensor");
  m.impl("count_up", c10::DispatchKey::CPU, TORCH_FN(count_up));
  m.def("refuse(Tensor x) -> Tensor");
  m.impl("refuse", c10::DispatchKey::CPU, TORCH_FN(refuse));
}
Tensor call(const char* name, const std::vector<Tensor>& arguments) {
  OperatorStack stack(arguments.begin(), arguments.end());
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
  return stack.front().toTensor();
}

/// Counts the operators that it sees.
class Counter final : public OperatorPolicy {
 public:
  void before(const c10::OperatorHandle& op, OperatorStack&, std::size_t) override { ++seen[op.schema().name()]; }
  void after(const c10::OperatorHandle&) noexcept override {}
  std::map<std::string, int> seen;
};

class Regions : public ::testing::Test {
 protected:
  Tensor run(const Body& body, const Tensor& x, capstan_recompute how = {sizeof(capstan_recompute)}) {
    recomputation_.begin_forward({.inside = inside_}, true);
    Tensor out = run_region(recomputation_, "blocks.3", x, body, how);
    recomputation_.end_forward();
    return out;
  }
  static Tensor gradient(const Tensor& loss, const Tensor& of) {
    return torch::autograd::grad({loss}, {of}, {}, /*retain_graph=*/true)[0];
  }

  const Tensor x_ = torch::linspace(-1, 1, 12).view({3, 4}), w_ = leaf({4, 4});
  OperatorPolicy* inside_ = nullptr;
  Recomputation recomputation_;
};

TEST_F(Regions, AreCheckedInTheFirstMicroBatchForMemoryThatNoOperatorWrites) {
  const Tensor out = run(
      [this](const Tensor& x) {
        const Tensor y = x.matmul(w_).clone();
        y.data_ptr<float>()[2] = 5;
        return y * y.sin();
      },
      x_);

  EXPECT_THAT(
      [&] { out.sum().backward(); },
      ThrowsMessage<std::exception>(AllOf(HasSubstr("recomputed aten::clone of layer 'blocks.3' differs from the "
                                                    "forward: does the model write memory without operators"),
                                          HasSubstr("capstan.recompute.layers"))));
}

/// The result was saved before it was written, and nothing saves it after.
TEST_F(Regions, AreCheckedForWhatIsWrittenBehindASavedResult) {
  const Tensor out = run(
      [this](const Tensor& x) {
        const Tensor y = x.matmul(w_).sigmoid();
        y.data_ptr<float>()[2] = 5;
        return y + 1;
      },
      x_);

  EXPECT_THAT([&] { out.sum().backward(); },
              ThrowsMessage<std::exception>(HasSubstr("recomputed aten::sigmoid of layer 'blocks.3' differs")));
}

TEST_F(Regions, AreNotCheckedWhereThatIsSwitchedOff) {
  capstan_recompute how{sizeof how};
  how.check = 2;
  const Tensor out = run(
      [this](const Tensor& x) {
        const Tensor y = x.matmul(w_).clone();
        y.data_ptr<float>()[2] = 5;
        return y.pow(2);
      },
      x_, how);

  EXPECT_NO_THROW(out.sum().backward());
}

TEST_F(Regions, NameAnOperatorThatWritesWhatItsSchemaDoesNotSay) {
  const Tensor counter = torch::zeros({1});
  const Tensor out = run(
      [&](const Tensor& x) {
        const Tensor scaled = call("capstan_test::count_up", {x, counter});
        return scaled * w_[0];
      },
      x_);

  EXPECT_THAT(
      [&] { out.sum().backward(); },
      ThrowsMessage<std::exception>(HasSubstr("recomputed capstan_test::count_up of layer 'blocks.3' differs")));
}

TEST_F(Regions, RefuseToKeepAnOperatorThatThereIsNot) {
  const capstan_str keep[] = {CAPSTAN_LITERAL("aten::_softmx")};
  capstan_recompute how{sizeof how};
  how.keep = keep;
  how.keep_count = 1;

  EXPECT_THAT([&] { run([](const Tensor& x) { return x.sin(); }, x_, how); },
              ThrowsMessage<RuntimeFault>(AllOf(HasSubstr("layer 'blocks.3': keep: LibTorch has no operator "
                                                          "'aten::_softmx'"),
                                                HasSubstr("Did you mean 'aten::_softmax'?"))));
}

TEST_F(Regions, SayThatATensorWhichTheyUsedWasChangedLater) {
  const Tensor scale = torch::ones({4});
  const Tensor out = run([&](const Tensor& x) { return (x.matmul(w_) + scale).sin(); }, x_);
  scale.add_(1);

  EXPECT_THAT(
      [&] { out.sum().backward(); },
      ThrowsMessage<std::exception>(AllOf(HasSubstr("layer 'blocks.3' cannot be computed again: a tensor that it "
                                                    "used, Float[4], was changed in place"),
                                          HasSubstr("Change a copy of it"))));
}

TEST_F(Regions, SayAsLibTorchThatASavedTensorWasChanged) {
  Tensor saved;
  const Tensor out = run(
      [&](const Tensor& x) {
        saved = x.matmul(w_).sin();
        return saved * saved;
      },
      x_);
  saved.add_(1);

  EXPECT_THAT([&] { out.sum().backward(); },
              ThrowsMessage<std::exception>(
                  AllOf(HasSubstr("has been modified by an inplace operation"), HasSubstr("in layer 'blocks.3'"))));
}

TEST_F(Regions, HoldNothingButTheirBoundaryUntilBackward) {
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> made;
  const auto note = [&](const Tensor& tensor) {
    made.push_back(tensor.storage().getWeakStorageImpl());
    return tensor;
  };
  const Tensor out = run(
      [&](const Tensor& x) {
        const Tensor y = note(torch::dropout(note(x.matmul(w_)), 0.5, true));
        return note(torch::gelu(y)) * note(y.softmax(-1)) + note(torch::layer_norm(y, {4}));
      },
      x_);

  for (const auto& storage : made) EXPECT_TRUE(storage.expired());
  EXPECT_TRUE(out.requires_grad());
}

TEST_F(Regions, RunNothingAgainThatNobodyAsksFor) {
  Counter counter;
  inside_ = &counter;
  const Tensor v = leaf({4, 4});
  const Tensor out = run([&](const Tensor& x) { return torch::linear(x.matmul(w_).sin(), v); }, x_);
  counter.seen.clear();

  out.sum().backward();

  // The last product is nobody's operand: only what it multiplied is.
  EXPECT_EQ(counter.seen["aten::linear"] + counter.seen["aten::addmm"], 0);
  EXPECT_EQ(counter.seen["aten::matmul"] + counter.seen["aten::mm"], 1);
  EXPECT_EQ(counter.seen["aten::sin"], 1);
}

TEST_F(Regions, KeepTheResultsOfOperatorsThatAreNamed) {
  for (const bool keeps : {false, true}) {
    Counter counter;
    inside_ = &counter;
    const capstan_str keep[] = {CAPSTAN_LITERAL("softmax")};
    capstan_recompute how{sizeof how};
    how.keep = keep;
    how.keep_count = keeps ? 1 : 0;
    const Tensor out = run([&](const Tensor& x) { return x.matmul(w_).softmax(-1).sin(); }, x_, how);
    counter.seen.clear();

    out.sum().backward();

    EXPECT_EQ(counter.seen["aten::_softmax"] + counter.seen["aten::softmax"], keeps ? 0 : 1);
    EXPECT_EQ(counter.seen["aten::matmul"] + counter.seen["aten::mm"], keeps ? 0 : 1);
  }
}

TEST_F(Regions, CanBeUsedByTwoBackwards) {
  const Tensor out = run([this](const Tensor& x) { return x.matmul(w_).sin().tanh(); }, x_);
  const Tensor first = gradient(out.sum(), w_), second = gradient(out.sum(), w_);

  EXPECT_TRUE(first.equal(second));
  EXPECT_TRUE(first.equal(gradient(x_.matmul(w_).sin().tanh().sum(), w_)));
}

TEST_F(Regions, TakeSecondDerivatives) {
  const auto second = [&](const Tensor& out) {
    const Tensor g = torch::autograd::grad({out.sum()}, {w_}, {}, true, /*create_graph=*/true)[0];
    return torch::autograd::grad({g.pow(2).sum()}, {w_})[0];
  };
  const Tensor out = run([this](const Tensor& x) { return x.matmul(w_).sin().pow(3); }, x_);

  EXPECT_TRUE(second(out).equal(second(x_.matmul(w_).sin().pow(3))));
}

TEST_F(Regions, GoOnAfterALayerThatThrew) {
  EXPECT_THROW(run([](const Tensor&) -> Tensor { throw std::runtime_error("no"); }, x_), std::exception);

  const Tensor out = run([this](const Tensor& x) { return x.matmul(w_).sin(); }, x_);

  EXPECT_TRUE(gradient(out.sum(), w_).equal(gradient(x_.matmul(w_).sin().sum(), w_)));
}

TEST_F(Regions, TellWhatAnOperatorSaysThatFailsTheSecondTime) {
  const Tensor out =
      run([this](const Tensor& x) { return torch::dropout(call("capstan_test::refuse", {x}), 0.5, true) * w_[0]; }, x_);
  torch::manual_seed(3);
  const Tensor next = torch::rand({1});
  torch::manual_seed(3);
  refuses = true;
  EXPECT_THAT([&] { out.sum().backward(); }, ThrowsMessage<std::exception>(HasSubstr("refused")));
  refuses = false;

  EXPECT_TRUE(torch::rand({1}).equal(next));
  EXPECT_NO_THROW(out.sum().backward()) << "the second time";
}

TEST_F(Regions, ComputeNothingOnceTheEngineHasEnded) {
  const Tensor out = run([this](const Tensor& x) { return x.matmul(w_).sin(); }, x_);
  recomputation_.end();

  EXPECT_THAT([&] { out.sum().backward(); }, ThrowsMessage<std::exception>(HasSubstr("its engine has ended")));
}

TEST_F(Regions, AreLeftOutWithoutGradients) {
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(run([this](const Tensor& x) { return x.matmul(w_); }, x_).equal(x_.matmul(w_)));
}

/// Keeps boundaries, and writes down what it is asked.
struct Keeper {
  std::map<std::uint64_t, Tensor> kept;
  std::vector<std::string> log;
  bool full = false;

  capstan_recompute how() {
    capstan_recompute how{sizeof how};
    how.ctx = this;
    how.pack = [](void* self, capstan_tensor tensor, std::uint64_t* id, capstan_error* error) {
      auto& keeper = *static_cast<Keeper*>(self);
      if (keeper.full) {
        error->text = "there is no room";
        return CAPSTAN_FAILED;
      }
      *id = keeper.log.size();
      keeper.kept[*id] = tensor_of(tensor).clone();
      keeper.log.push_back("pack");
      return CAPSTAN_OK;
    };
    how.unpack = [](void* self, std::uint64_t id, capstan_tensor* out, capstan_error*) {
      auto& keeper = *static_cast<Keeper*>(self);
      *out = handle_of(*new Tensor(keeper.kept.at(id)));
      keeper.log.push_back("unpack");
      return CAPSTAN_OK;
    };
    how.drop = [](void* self, std::uint64_t id) {
      auto& keeper = *static_cast<Keeper*>(self);
      keeper.kept.erase(id);
      keeper.log.push_back("drop");
    };
    how.backward = [](void* self, capstan_str layer, int what) {
      static_cast<Keeper*>(self)->log.push_back(std::string(as_view(layer)) + " " + std::to_string(what));
    };
    return how;
  }
};

TEST_F(Regions, SendTheirBoundaryWhereTheyAreTold) {
  Keeper keeper;
  const Tensor v = leaf({4});
  c10::weak_intrusive_ptr<c10::StorageImpl> boundary = x_.storage().getWeakStorageImpl();
  Tensor out;
  {
    const Tensor hidden = x_ * v;
    boundary = hidden.storage().getWeakStorageImpl();
    out = run(
        [this](const Tensor& x) {
          return x.sin() * x.view({12}).cos().view({3, 4}) + x.matmul(w_);
        },
        hidden, keeper.how());
  }
  EXPECT_TRUE(boundary.expired());

  const Tensor h = x_ * v;
  const Tensor expected = gradient((h.sin() * h.cos() + h.matmul(w_)).sum(), v);
  EXPECT_TRUE(torch::autograd::grad({out.sum()}, {v})[0].equal(expected));
  out.reset();
  EXPECT_THAT(keeper.log, ElementsAre("pack", "blocks.3 0", "unpack", "blocks.3 1", "drop", "blocks.3 2"));
}

TEST_F(Regions, DropTheBoundaryOfAGraphThatIsAbandoned) {
  Keeper keeper;
  run([this](const Tensor& x) { return x.matmul(w_).sin(); }, x_, keeper.how());

  EXPECT_THAT(keeper.log, ElementsAre("pack", "drop", "blocks.3 2"));
}

TEST_F(Regions, DropTheBoundaryWhenTheEngineEnds) {
  Keeper keeper;
  const Tensor out = run([this](const Tensor& x) { return x.matmul(w_).sin(); }, x_, keeper.how());
  recomputation_.end();

  EXPECT_THAT(keeper.log, ElementsAre("pack", "drop"));
}

TEST_F(Regions, SayThatTheirBoundaryCannotBeKept) {
  Keeper keeper;
  keeper.full = true;

  EXPECT_THAT([&] { run([this](const Tensor& x) { return x.matmul(w_).sin(); }, x_, keeper.how()); },
              ThrowsMessage<std::exception>(HasSubstr("recomputation of 'blocks.3', pack: there is no room")));
}

}  // namespace
}  // namespace capstan
