// Observers that show what reaches a layer, and a pacing.
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros_like.h>

#include <string>

#include "capstan/sdk/aten.hpp"
#include "capstan/sdk/observer.hpp"
#include "capstan/sdk/pacing.hpp"

namespace {

namespace sdk = capstan::sdk;

/// Gives its layer a mask of zeros, and 10 times what the layer makes of hidden + 1 to the model.
class Around {
 public:
  Around(const sdk::Host&, const sdk::Params& params) : replaces_(params.text("replaces")) {}

  capstan_tensor layer(sdk::LayerRun& run) {
    const at::Tensor zeros =
        run.argument(replaces_) ? at::zeros_like(sdk::borrow(run.argument(replaces_))) : at::Tensor();
    if (!replaces_.empty()) run.replace(replaces_, sdk::lend(zeros));
    const at::Tensor input = sdk::borrow(run.hidden()).add(1);
    return sdk::give(sdk::take(run.run(sdk::lend(input))).mul(10));
  }

 private:
  std::string replaces_;
};

/// Doubles what goes in.
class Doubled {
 public:
  Doubled(const sdk::Host&, const sdk::Params&) {}

  capstan_tensor layer(sdk::LayerRun& run) {
    const at::Tensor input = sdk::borrow(run.hidden()).mul(2);
    return run.run(sdk::lend(input));
  }
};

/// Writes down each call, and keeps the lines as its state.
class Log {
 public:
  Log(sdk::Host host, const sdk::Params& params) : host_(host), asks_(params.text("asks")) {}

  void event(const capstan_event& event) {
    if (event.kind == CAPSTAN_EVENT_INITIALIZED) {
      for (const std::string& name : host_.layer_names()) lines_ += name + ";";
    }
    if (event.kind == CAPSTAN_EVENT_STEP_BEGIN && !asks_.empty()) {
      lines_ += std::to_string(host_.difficulty(asks_, event.global_step + 1)) + ";";
    }
  }

  capstan_tensor layer(sdk::LayerRun& run) {
    const sdk::Batch batch = run.batch();
    const at::Tensor positions = sdk::borrow(batch.tensor("sample_position"));
    lines_ += std::string(run.name()) + " " + std::to_string(run.index()) + "/" + std::to_string(run.count()) +
              " step " + std::to_string(static_cast<int>(batch.number("global_step").value_or(-1))) + "." +
              std::to_string(static_cast<int>(batch.number("micro_step").value_or(-1))) + " rows";
    for (std::int64_t i = 0; i < positions.numel(); ++i)
      lines_ += " " + std::to_string(positions[i].item<std::int64_t>());
    if (run.argument("attention_mask")) {
      lines_ += " mask " + std::to_string(sdk::borrow(run.argument("attention_mask")).sum().item<std::int64_t>());
    }
    lines_ += ";";
    return run.run(run.hidden());
  }

  void save(const sdk::Sink& sink) { sink.write("\"" + lines_ + "\""); }
  void load(const sdk::Document&) {}

 private:
  sdk::Host host_;
  std::string asks_, lines_;
};

class Stairs {
 public:
  Stairs(const sdk::Host&, const sdk::Params&) {}
  std::int64_t difficulty(std::string_view metric, std::int64_t step) const {
    if (metric != "seqlen") throw sdk::Error("knows seqlen only");
    return 8 * step;
  }
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::observer<Around, "LayerOuter">, &capstan::sdk::observer<Around, "LayerInner">,
               &capstan::sdk::observer<Doubled, "LayerDoubled">, &capstan::sdk::observer<Log, "LayerLog">,
               &capstan::sdk::pacing<Stairs, "Stairs">)
