#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <utility>

#include "core/model/batch.hpp"
#include "sdk/conformance/component_under_test.hpp"
#include "sdk/conformance/device_under_test.hpp"
#include "sdk/conformance/footprint.hpp"

namespace capstan::conformance {
namespace {

capstan_tensor handle(at::Tensor& tensor) { return reinterpret_cast<capstan_tensor>(&tensor); }

at::Tensor take(capstan_tensor owned) {
  const std::unique_ptr<at::Tensor> tensor(reinterpret_cast<at::Tensor*>(owned));
  return tensor ? *tensor : at::Tensor();
}

struct ObserverUnderTest {
  ObserverUnderTest(const Context& context, const ComponentManifest& manifest)
      : component(context, manifest), table(component.vtable<capstan_observer>()), device(device_of(manifest)) {}

  void event(capstan_event_kind kind, std::int64_t step, double norm = std::nan(""), at::Tensor loss = {}) {
    if (!CAPSTAN_HAS(table, event)) return;
    capstan_event event{};
    event.struct_size = sizeof event;
    event.kind = kind;
    event.global_step = step;
    event.update_index = step;
    event.global_samples = 8 * step;
    event.grad_norm = norm;
    event.loss = loss.defined() ? handle(loss) : nullptr;
    may_refuse("event " + std::to_string(kind),
               [&](capstan_error* error) { return table->event(component.self(), &event, error); });
  }

  void run_steps(std::int64_t count, double norm) {
    event(CAPSTAN_EVENT_INITIALIZED, 0);
    for (std::int64_t step = 0; step < count; ++step) {
      event(CAPSTAN_EVENT_STEP_BEGIN, step);
      event(CAPSTAN_EVENT_FORWARD_BEGIN, step);
      event(CAPSTAN_EVENT_FORWARD_END, step, std::nan(""), at::full({}, 2.5, device));
      event(CAPSTAN_EVENT_BACKWARD_BEGIN, step);
      event(CAPSTAN_EVENT_BACKWARD_END, step);
      event(CAPSTAN_EVENT_UPDATE_BEGIN, step, norm);
      event(CAPSTAN_EVENT_UPDATE_END, step, norm);
      event(CAPSTAN_EVENT_STEP_END, step, norm, at::full({}, 2.5, device));
    }
  }

  /// The output of the wrapped layer, and how often the layer within ran. The call has an attention mask and positions.
  std::pair<at::Tensor, int> layer(at::Tensor& hidden) {
    int runs = 0;
    capstan_inner inner{};
    inner.struct_size = sizeof inner;
    inner.ctx = &runs;
    inner.run = [](void* ctx, capstan_tensor input, const capstan_argument* const*, std::size_t, capstan_tensor* out,
                   capstan_error*) {
      ++*static_cast<int*>(ctx);
      *out = reinterpret_cast<capstan_tensor>(new at::Tensor(reinterpret_cast<at::Tensor*>(input)->add(1)));
      return CAPSTAN_OK;
    };
    const std::int64_t rows = hidden.size(0), tokens = hidden.dim() > 1 ? hidden.size(1) : 1;
    at::Tensor mask = at::ones({1, 1, tokens, tokens}, device).tril();
    at::Tensor positions = at::arange(tokens, device).unsqueeze(0);
    const capstan_argument given[] = {{sizeof(capstan_argument), as_str("attention_mask"), handle(mask)},
                                      {sizeof(capstan_argument), as_str("position_ids"), handle(positions)}};
    const capstan_argument* const pointers[] = {&given[0], &given[1]};
    Batch batch;
    batch.numbers = {{"global_step", 0}, {"micro_step", 0}};
    batch.tensors["sample_position"] = at::arange(rows, device);
    capstan_layer_call call{};
    call.struct_size = sizeof call;
    call.count = 2;
    call.name = as_str("blocks.0");
    call.batch = &batch;
    call.hidden = handle(hidden);
    call.arguments = pointers;
    call.argument_count = std::size(pointers);
    capstan_tensor out = nullptr;
    must("layer", [&](capstan_error* error) { return table->layer(component.self(), &call, &inner, &out, error); });
    return {take(out), runs};
  }

  void take_tokens() {
    Batch batch;
    batch.tensors["input_ids"] = at::arange(16, device).view({2, 8});
    batch.tensors["labels"] = at::arange(16, device).view({2, 8});
    must("batch", [&](capstan_error* error) { return table->batch(component.self(), &batch, error); });
  }

  ComponentUnderTest component;
  const capstan_observer* table;
  c10::Device device;  // of the tensors
};

void check_attach(const Context& context, const ComponentManifest& component) {
  const ObserverUnderTest observer(context, component);
  const auto* table = observer.table;
  const std::pair<const char*, bool> places[] = {{"events", CAPSTAN_HAS(table, event)},
                                                 {"layers", CAPSTAN_HAS(table, layer)},
                                                 {"batch", CAPSTAN_HAS(table, batch)}};
  for (const auto& [place, has] : places) {
    expect(has == component.attaches(place),
           has ? std::string("its code attaches to ") + place + ", but the manifest's attach does not say so."
               : std::string("the manifest's attach says ") + place + ", but its code does not.");
  }
}

void check_events(const Context& context, const ComponentManifest& component) {
  if (!component.attaches("events")) throw Skip("it does not attach to events.");
  ObserverUnderTest observer(context, component);
  observer.run_steps(20, 1.5);
  observer.run_steps(2, std::nan(""));
  observer.event(CAPSTAN_EVENT_EVAL_BEGIN, 22);
  observer.event(CAPSTAN_EVENT_EVAL_END, 22);
  observer.event(CAPSTAN_EVENT_SAVE_BEGIN, 22);
  observer.event(CAPSTAN_EVENT_SAVE_END, 22);
  observer.event(CAPSTAN_EVENT_LOADED, 22);
  observer.event(CAPSTAN_EVENT_CLOSING, 22);
  // A later engine may know more events than this SDK.
  observer.event(static_cast<capstan_event_kind>(1000), 22);
}

void check_round_trip(const Context& context, const ComponentManifest& component) {
  ObserverUnderTest before(context, component), after(context, component);
  const auto* table = before.table;
  expect(CAPSTAN_HAS(table, save) == CAPSTAN_HAS(table, load), "save and load belong together.");
  if (!CAPSTAN_HAS(table, save)) throw Skip("it keeps nothing.");
  const auto save = [&](ObserverUnderTest& observer) {
    capstan_sink sink;
    must("save", [&](capstan_error* error) { return table->save(observer.component.self(), &sink, error); });
    return Json::parse(sink.text);
  };
  before.run_steps(5, 1.5);
  const Json saved = save(before);
  const std::string text = saved.dump();
  must("load", [&](capstan_error* error) { return table->load(after.component.self(), as_str(text), error); });
  expect(save(after) == saved, "what it saves after loading is not what it loaded: " + text);
}

void check_layers(const Context& context, const ComponentManifest& component) {
  if (!component.attaches("layers")) throw Skip("it does not attach to layers.");
  ObserverUnderTest observer(context, component);
  at::Tensor hidden = at::zeros({2, 8, 4}, observer.device);
  const auto [out, runs] = observer.layer(hidden);
  expect(out.defined(), "layer gives nothing to the model.");
  expect(out.sizes() == hidden.sizes(), "layer gives the model a tensor of another shape.");
  expect(runs <= 1, "layer runs the layer more than once.");
}

void check_batch(const Context& context, const ComponentManifest& component) {
  if (!component.attaches("batch")) throw Skip("it does not attach to batches.");
  ObserverUnderTest observer(context, component);
  observer.take_tokens();
  Batch empty;
  may_refuse("batch",
             [&](capstan_error* error) { return observer.table->batch(observer.component.self(), &empty, error); });
}

void check_observer_leaks(const Context& context, const ComponentManifest& component) {
  ObserverUnderTest observer(context, component);
  at::Tensor hidden = at::zeros({2, 8, 4}, observer.device);
  if (component.attaches("events")) expect_no_leak("event in a step", [&] { observer.run_steps(1, 1.5); });
  if (component.attaches("batch")) expect_no_leak("batch", [&] { observer.take_tokens(); });
  if (component.attaches("layers")) expect_no_leak("layer", [&] { observer.layer(hidden); });
}

}  // namespace

Cases observer_cases(const ComponentManifest& component) {
  const std::string prefix = "observer/" + component.type + "/";
  const auto bound = [component](auto check) {
    return [component, check](const Context& context) { check(context, component); };
  };
  return {
      {prefix + "attach", "It attaches where its manifest says, and nowhere else.", bound(check_attach)},
      {prefix + "events", "It takes every event, norms that are NaN and kinds that it does not know.",
       bound(check_events)},
      {prefix + "state_round_trip", "What it saves, it loads.", bound(check_round_trip)},
      {prefix + "layers", "A wrapped layer runs at most once and keeps its shape.", bound(check_layers)},
      {prefix + "batch", "It takes batches, an empty one too.", bound(check_batch)},
      {prefix + "calls_leak", "Calls keep no memory, however many a run makes.", bound(check_observer_leaks)},
  };
}

}  // namespace capstan::conformance
