// A number for each byte that should become 1, and every way to get it wrong.
#include <ATen/core/Tensor.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>

#include <ctime>
#include <string>

#include "bad.hpp"
#include "capstan/sdk/aten.hpp"
#include "capstan/sdk/component.hpp"
#include "creation.hpp"

namespace {

namespace sdk = capstan::sdk;

struct Bad {
  Bad(const sdk::Host& lent, const sdk::Params& params)
      : host(lent), weights(at::rand({256}).set_requires_grad(true)), idle(at::zeros({3}).set_requires_grad(true)) {
    create_badly(params);
    static int instances = 0;
    if (breaks("deterministic")) weights = at::rand({256}).add(++instances).set_requires_grad(true);
  }

  at::Tensor loss(const at::Tensor& tokens) {
    leak_in_call();
    at::Tensor picked = at::index_select(weights, 0, tokens.flatten());
    if (breaks("clock")) picked = picked.add(1e-9 * static_cast<double>(std::clock()));
    if (breaks("evaluation")) picked = picked.add(at::rand({1}));
    at::Tensor error = picked.sub(1).pow(2);
    if (breaks("learns")) error = error.detach().mul(2).sub(error);  // the value, uphill
    return breaks("loss") ? error : error.mean();
  }

  sdk::Host host;
  at::Tensor weights, idle;
};

using Self = sdk::Instance<Bad>;

capstan_status visit(void* self, const capstan_visitor* visitor, capstan_error*) {
  auto& bad = static_cast<Self*>(self)->object;
  visitor->tensor(visitor->ctx, sdk::to_str("weights"), sdk::lend(bad.weights), CAPSTAN_ROLE_PARAMETER);
  if (breaks("visit")) {
    visitor->tensor(visitor->ctx, sdk::to_str("weights"), sdk::lend(bad.idle), CAPSTAN_ROLE_PARAMETER);
  }
  return CAPSTAN_OK;
}

capstan_status forward(void* self, capstan_batch* batch, capstan_tensor* loss, capstan_error* error) {
  auto& instance = *static_cast<Self*>(self);
  return sdk::guarded(instance.host, error, [&] {
    capstan_tensor tokens = nullptr;
    sdk::check(instance.host->batch_tensor(batch, sdk::to_str("input_ids"), &tokens, error));
    *loss = sdk::give(instance.object.loss(sdk::borrow(tokens)));
  });
}

capstan_status training(void*, int, capstan_error*) { return CAPSTAN_OK; }

capstan_status tell(void* self, capstan_sink* sink, capstan_error*) {
  const std::string names = breaks("transformers") ? "" : R"({"parameter": "weights", "name": "lm.weights"})";
  const std::string whole = R"({"vocab_size": 256, "hf": {"config": {}, "tensors": [)" + names + "]}}";
  const std::string facts = breaks("describe") ? "[]" : whole;
  static_cast<Self*>(self)->host->sink_write(sink, sdk::to_str(facts));
  return CAPSTAN_OK;
}

capstan_status outputs(void* self, capstan_batch* batch, void* ctx,
                       void (*take)(void* ctx, capstan_str name, capstan_tensor), capstan_error* error) {
  auto& instance = *static_cast<Self*>(self);
  return sdk::guarded(instance.host, error, [&] {
    capstan_tensor tokens = nullptr;
    sdk::check(instance.host->batch_tensor(batch, sdk::to_str("input_ids"), &tokens, error));
    const at::Tensor picked = at::index_select(instance.object.weights, 0, sdk::borrow(tokens).flatten());
    take(ctx, sdk::to_str("picked"), sdk::lend(picked));
    if (breaks("outputs")) take(ctx, sdk::to_str("picked"), sdk::lend(picked));
  });
}

capstan_status begin_decode(void*, std::size_t, std::int64_t, void** cache, capstan_error*) {
  *cache = new std::int64_t(0);
  return CAPSTAN_OK;
}

/// The likeliest token is the one that was seen last, or with a wrong cache another one for each call.
capstan_status decode(void* self, void* cache, capstan_tensor ids, capstan_tensor* logits, capstan_error* error) {
  return sdk::guarded(static_cast<Self*>(self)->host, error, [&] {
    const at::Tensor tokens = sdk::borrow(ids);
    const at::Tensor last =
        tokens.select(1, tokens.size(1) - 1).add(breaks("decode") ? ++*static_cast<std::int64_t*>(cache) : 0);
    *logits = sdk::give(at::zeros({tokens.size(0), 256}).scatter(1, last.remainder(256).unsqueeze(1), 1));
  });
}

void end_decode(void*, void* cache) { delete static_cast<std::int64_t*>(cache); }

constexpr capstan_model kTable = {sizeof(capstan_model), &visit,  &forward,   &training, &tell, nullptr, &outputs,
                                  &begin_decode,         &decode, &end_decode};
constexpr capstan_component kBad = with_raw_create<Bad>(sdk::describe<Bad, "model", "Bad">(&kTable));

}  // namespace

CAPSTAN_PLUGIN(&kBad)
