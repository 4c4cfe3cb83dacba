#include "template_plugin.hpp"

#include <capstan/sdk/observer.hpp>
#include <cstdio>

namespace {

namespace sdk = capstan::sdk;

/// Everything runs on the engine's thread; what is thrown stops the run with its text.
class TemplatePlugin {
 public:
  TemplatePlugin(const sdk::Host& host, const sdk::Params& params) : host_(host), detector_(params.number("factor")) {}

  void event(const capstan_event& event) {
    if (event.kind != CAPSTAN_EVENT_UPDATE_BEGIN || !detector_.is_jump(event.grad_norm)) return;
    host_.warning("step " + std::to_string(event.global_step + 1) + ": the gradients' norm jumped to " +
                  std::to_string(event.grad_norm) + ".");
  }

  // A resumed run goes on as if it had never stopped.
  void save(const sdk::Sink& sink) {
    char number[40];
    std::snprintf(number, sizeof number, "{\"mean\": %.17g}", detector_.mean());
    sink.write(number);
  }
  void load(const sdk::Document& saved) { detector_.set_mean(saved.number("mean")); }

 private:
  sdk::Host host_;
  TemplatePluginDetector detector_;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::observer<TemplatePlugin, "TemplatePlugin">)
