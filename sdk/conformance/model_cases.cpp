#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <cmath>
#include <map>
#include <set>

#include "core/memory/tensor_handle.hpp"
#include "core/model/batch.hpp"
#include "sdk/conformance/component_under_test.hpp"
#include "sdk/conformance/footprint.hpp"

namespace capstan::conformance {
namespace {

constexpr std::int64_t kSamples = 2;
constexpr std::int64_t kMostTokens = 64;

class ModelUnderTest {
 public:
  ModelUnderTest(const Context& context, const ComponentManifest& manifest)
      : component_((at::manual_seed(context.seed), context), manifest), table_(component_.vtable<capstan_model>()) {
    visit();
  }

  struct Seen {
    std::string name;
    at::Tensor tensor;
    bool parameter;
  };

  void visit() {
    seen.clear();
    capstan_visitor visitor{};
    visitor.struct_size = sizeof visitor;
    visitor.ctx = &seen;
    visitor.tensor = [](void* ctx, capstan_str name, capstan_tensor tensor, capstan_role role) {
      static_cast<std::vector<Seen>*>(ctx)->push_back(
          {std::string(as_view(name)), tensor_of(tensor), role == CAPSTAN_ROLE_PARAMETER});
    };
    visitor.module = [](void*, capstan_str, capstan_str) {};
    must("visit", [&](capstan_error* error) { return table_->visit(component_.self(), &visitor, error); });
  }

  Json describe() const {
    if (!CAPSTAN_HAS(table_, describe)) return Json::object();
    capstan_sink sink;
    must("describe", [&](capstan_error* error) { return table_->describe(component_.self(), &sink, error); });
    return Json::parse(sink.text);
  }

  /// Tokens of the length and range that the model tells of itself.
  Batch batch(std::mt19937_64& random) const {
    const Json facts = describe();
    const auto fact = [&](const char* name, std::int64_t otherwise) {
      const Json* value = facts.find(name);
      return value && value->is_number() ? static_cast<std::int64_t>(value->as_number()) : otherwise;
    };
    const std::int64_t length = std::min(fact("sequence_length", 16), kMostTokens);
    const std::int64_t vocabulary = fact("vocab_size", 256);
    Batch batch;
    for (const char* name : {"input_ids", "labels"}) {
      std::vector<std::int64_t> tokens(static_cast<std::size_t>(kSamples * length));
      for (auto& token : tokens) token = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(vocabulary));
      batch.tensors[name] =
          at::from_blob(tokens.data(), {kSamples, length}, at::TensorOptions().dtype(at::kLong)).clone();
    }
    return batch;
  }

  at::Tensor forward(Batch& batch) {
    capstan_error error;
    capstan_tensor handle = nullptr;
    const capstan_status status = table_->forward(component_.self(), &batch, &handle, &error);
    if (status != CAPSTAN_OK && error.text.find("the batch has no tensor '") != std::string::npos) {
      throw Skip("it needs more than tokens: " + error.text);
    }
    expect(status == CAPSTAN_OK, "forward: " + error.text);
    expect(handle != nullptr, "forward gives no loss.");
    return take_tensor(handle);
  }

  bool has_outputs() const { return CAPSTAN_HAS(table_, outputs); }

  std::map<std::string, at::Tensor> outputs(Batch& batch) {
    std::vector<std::pair<std::string, at::Tensor>> given;
    must("outputs", [&](capstan_error* error) {
      return table_->outputs(
          component_.self(), &batch, &given,
          [](void* ctx, capstan_str name, capstan_tensor tensor) {
            static_cast<std::vector<std::pair<std::string, at::Tensor>>*>(ctx)->emplace_back(
                as_view(name), tensor ? tensor_of(tensor) : at::Tensor());
          },
          error);
    });
    std::map<std::string, at::Tensor> outputs;
    for (auto& [name, tensor] : given) {
      expect(!name.empty() && tensor.defined(), "outputs gives a tensor without a name, or a name without a tensor.");
      expect(outputs.emplace(name, tensor).second, "outputs gives the name '" + name + "' twice.");
    }
    return outputs;
  }

  /// Logits of the token behind `ids`, [samples, vocab_size], that come in `calls` calls.
  at::Tensor decoded(const at::Tensor& ids, std::int64_t calls) {
    const int functions =
        CAPSTAN_HAS(table_, begin_decode) + CAPSTAN_HAS(table_, decode) + CAPSTAN_HAS(table_, end_decode);
    if (functions == 0) throw Skip("it does not continue sequences.");
    expect(functions == 3, "begin_decode, decode and end_decode: some are there, and some are not.");
    void* cache = nullptr;
    must("begin_decode", [&](capstan_error* error) {
      return table_->begin_decode(component_.self(), static_cast<std::size_t>(ids.size(0)), ids.size(1), &cache, error);
    });
    at::Tensor logits;
    for (std::int64_t call = 0; call < calls; ++call) {
      const std::int64_t from = ids.size(1) * call / calls, to = ids.size(1) * (call + 1) / calls;
      const at::Tensor part = ids.narrow(1, from, to - from);
      capstan_tensor handle = nullptr;
      must("decode", [&](capstan_error* error) {
        return table_->decode(component_.self(), cache, handle_of(part), &handle, error);
      });
      expect(handle != nullptr, "decode gives no logits.");
      logits = take_tensor(handle);
    }
    table_->end_decode(component_.self(), cache);
    return logits;
  }

  void training(bool on) {
    must("training", [&](capstan_error* error) { return table_->training(component_.self(), on ? 1 : 0, error); });
  }

  std::vector<Seen> seen;

 private:
  ComponentUnderTest component_;
  const capstan_model* table_;
};

void check_visit(const Context& context, const ComponentManifest& component) {
  ModelUnderTest model(context, component);
  const auto first = model.seen;
  model.visit();
  expect(!first.empty(), "shows no parameters.");
  expect(first.size() == model.seen.size(), "shows other tensors when it is visited again.");
  std::map<std::string, int> names;
  for (std::size_t i = 0; i < first.size(); ++i) {
    expect(!first[i].name.empty(), "shows a tensor without a name.");
    expect(++names[first[i].name] == 1, "shows the name '" + first[i].name + "' twice.");
    expect(first[i].name == model.seen[i].name && first[i].tensor.is_same(model.seen[i].tensor),
           "shows '" + first[i].name + "' as another tensor, or elsewhere, when it is visited again.");
  }
}

void check_loss(const Context& context, const ComponentManifest& component) {
  ModelUnderTest model(context, component);
  auto random = context.random();
  model.training(true);
  Batch batch = model.batch(random);
  const at::Tensor loss = model.forward(batch);
  expect(loss.numel() == 1 && loss.is_floating_point(), "the loss is not one floating-point number.");
  expect(std::isfinite(loss.item<double>()), "the loss is not finite.");
  expect(loss.requires_grad(), "the loss has no autograd graph while gradients are on.");
  loss.backward();
  bool any = false;
  for (const auto& seen : model.seen) {
    if (!seen.parameter || !seen.tensor.requires_grad()) continue;
    expect(seen.tensor.grad().defined(), "parameter '" + seen.name + "' gets no gradient.");
    any = true;
  }
  expect(any, "no parameter is trained.");
}

void check_eval(const Context& context, const ComponentManifest& component) {
  ModelUnderTest model(context, component);
  auto random = context.random();
  model.training(false);
  const at::NoGradGuard no_grad;
  Batch batch = model.batch(random);
  const double first = model.forward(batch).item<double>();
  const at::Tensor again = model.forward(batch);
  expect(!again.requires_grad(), "the loss has an autograd graph although gradients are off.");
  expect(again.item<double>() == first, "evaluating the same batch twice gives two losses.");
  model.training(true);
}

void check_deterministic(const Context& context, const ComponentManifest& component) {
  ModelUnderTest first(context, component), second(context, component);
  expect(first.seen.size() == second.seen.size(), "two instances differ in their tensors.");
  for (std::size_t i = 0; i < first.seen.size(); ++i) {
    expect(first.seen[i].tensor.equal(second.seen[i].tensor),
           "'" + first.seen[i].name + "' differs between two instances made from one seed.");
  }
  auto random = context.random();
  Batch batch = first.batch(random);
  at::manual_seed(context.seed);
  const double one = first.forward(batch).item<double>();
  at::manual_seed(context.seed);
  expect(second.forward(batch).item<double>() == one, "two instances give two losses for one batch and seed.");
}

void check_learns(const Context& context, const ComponentManifest& component) {
  ModelUnderTest model(context, component);
  auto random = context.random();
  model.training(true);
  Batch batch = model.batch(random);
  const double before = model.forward(batch).item<double>();
  for (int i = 0; i < 20; ++i) {
    model.forward(batch).backward();
    const at::NoGradGuard no_grad;
    for (const auto& seen : model.seen) {
      if (!seen.parameter || !seen.tensor.grad().defined()) continue;
      at::Tensor tensor = seen.tensor;
      tensor.sub_(tensor.grad(), 0.05);
      tensor.mutable_grad() = at::Tensor();
    }
  }
  const double after = model.forward(batch).item<double>();
  expect(after < before, "twenty steps down the gradient of one batch do not lower its loss, from " +
                             std::to_string(before) + " to " + std::to_string(after) + ".");
}

void check_describe(const Context& context, const ComponentManifest& component) {
  ModelUnderTest model(context, component);
  expect(model.describe().is_object(), "describe does not give a JSON object.");
}

void check_outputs(const Context& context, const ComponentManifest& component) {
  ModelUnderTest model(context, component);
  if (!model.has_outputs()) throw Skip("it gives no outputs beside its loss.");
  auto random = context.random();
  model.training(false);
  const at::NoGradGuard no_grad;
  Batch batch = model.batch(random);
  const auto first = model.outputs(batch);
  expect(!first.empty(), "outputs gives no tensor.");
  batch.tensors.erase("labels");
  const auto again = model.outputs(batch);
  expect(again.size() == first.size(), "outputs gives other names without labels.");
  for (const auto& [name, tensor] : first) {
    expect(!tensor.requires_grad(), "the output '" + name + "' has an autograd graph although gradients are off.");
    const auto found = again.find(name);
    expect(found != again.end() && found->second.equal(tensor), "the output '" + name + "' differs without labels.");
  }
  model.training(true);
}

/// A model that is built from a config.json gets its weights by transformers' names.
void check_transformers(const Context& context, const ComponentManifest& component) {
  ModelUnderTest model(context, component);
  const Json facts = model.describe();
  const Json* told = facts.find("hf");
  expect(told != nullptr,
         "the manifest has model_types, but describe has no \"hf\", which tells the names of weights in transformers.");
  if (told->find("refused") != nullptr) throw Skip("the model refuses to go to transformers: " + told->dump());
  const Json* tensors = told->find("tensors");
  expect(tensors != nullptr && tensors->is_array(), "\"hf\" has no list \"tensors\".");
  std::set<std::string> named;
  for (const Json& tensor : tensors->as_array()) {
    const Json *parameter = tensor.find("parameter"), *name = tensor.find("name");
    const bool told_right = parameter != nullptr && parameter->is_string() && name != nullptr && name->is_string();
    expect(told_right, "\"hf\" has a tensor without \"parameter\" and \"name\": " + tensor.dump() + ".");
    named.insert(parameter->as_string());
  }
  for (const auto& seen : model.seen) {
    expect(!seen.parameter || named.contains(seen.name), "\"hf\" has no name for parameter '" + seen.name + "'.");
  }
}

void check_forward_leak(const Context& context, const ComponentManifest& component) {
  ModelUnderTest model(context, component);
  auto random = context.random();
  model.training(false);
  const at::NoGradGuard no_grad;
  Batch batch = model.batch(random);
  constexpr std::size_t kCalls = 5;  // a model of real size takes a second each
  expect_no_leak(
      "forward", [&] { model.forward(batch); }, kCalls);
}

void check_decode(const Context& context, const ComponentManifest& component) {
  ModelUnderTest model(context, component);
  auto random = context.random();
  model.training(false);
  const at::NoGradGuard no_grad;
  const at::Tensor ids = model.batch(random).tensors.at("input_ids");
  const at::Tensor whole = model.decoded(ids, 1);
  expect(whole.dim() == 2 && whole.size(0) == kSamples && whole.is_floating_point(),
         "decode gives a " + std::string(c10::toString(whole.scalar_type())) + " tensor of shape " +
             c10::str(whole.sizes()) + " for " + std::to_string(kSamples) + " sequences.");
  const Json facts = model.describe();
  const Json* words = facts.find("vocab_size");
  expect(!words || whole.size(1) == words->as_integer(), "decode gives " + std::to_string(whole.size(1)) +
                                                             " logits, and vocab_size is " +
                                                             (words ? words->dump() : "") + ".");
  const double largest = whole.abs().max().item<double>();
  for (const std::int64_t calls : {std::int64_t{2}, ids.size(1)}) {
    const double apart = model.decoded(ids, calls).sub(whole).abs().max().item<double>();
    expect(apart <= 1e-3 * largest, "decode gives other logits where the tokens come in " + std::to_string(calls) +
                                        " calls, by " + std::to_string(apart) + " of " + std::to_string(largest) + ".");
  }
  if (const Json* ragged = facts.find("ragged_decode"); ragged == nullptr || !ragged->is_bool() || !ragged->as_bool()) {
    return;
  }
  // Half of each row but the first, which has all of its tokens.
  const at::Tensor uneven = ids.clone();
  uneven.narrow(0, 1, kSamples - 1).narrow(1, ids.size(1) / 2, ids.size(1) - ids.size(1) / 2).fill_(-1);
  const at::Tensor found = model.decoded(uneven, 1);
  const at::Tensor half = model.decoded(ids.narrow(1, 0, ids.size(1) / 2), 1);
  for (std::int64_t row = 0; row < kSamples; ++row) {
    const double apart = found.select(0, row).sub((row == 0 ? whole : half).select(0, row)).abs().max().item<double>();
    expect(apart <= 1e-3 * largest, "decode gives other logits for row " + std::to_string(row) +
                                        " where rows have different lengths, by " + std::to_string(apart) + " of " +
                                        std::to_string(largest) + ", and ragged_decode says that it takes them.");
  }
}

}  // namespace

Cases model_cases(const ComponentManifest& component) {
  const std::string prefix = "model/" + component.type + "/";
  const auto bound = [component](auto check) {
    return [component, check](const Context& context) { check(context, component); };
  };
  Cases cases = {
      {prefix + "visit", "It shows the same tensors, each once, in the same order.", bound(check_visit)},
      {prefix + "describe", "What it tells of itself is a JSON object.", bound(check_describe)},
      {prefix + "loss", "The loss is one finite number whose gradient reaches every parameter.", bound(check_loss)},
      {prefix + "evaluation", "Evaluating repeats itself and keeps no graph.", bound(check_eval)},
      {prefix + "deterministic", "One seed gives one model and one loss.", bound(check_deterministic)},
      {prefix + "learns", "Its loss falls along its gradient.", bound(check_learns)},
      {prefix + "outputs", "Outputs have names, and need no labels.", bound(check_outputs)},
      {prefix + "decode", "Tokens that come one by one give the logits of all at once.", bound(check_decode)},
      {prefix + "calls_leak", "Calls keep no memory, however many a run makes.", bound(check_forward_leak)},
  };
  if (!component.model_types.empty()) {
    cases.push_back({prefix + "transformers", "Each parameter has a name in transformers.", bound(check_transformers)});
  }
  return cases;
}

}  // namespace capstan::conformance
