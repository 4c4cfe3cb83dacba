#include "template_plugin.hpp"

#include <capstan/sdk/observer.hpp>
#include <capstan/sdk/tensor.hpp>

namespace {

namespace sdk = capstan::sdk;

/// Everything runs on the engine's thread; what is thrown stops the run with its text.
class TemplatePlugin {
 public:
  TemplatePlugin(const sdk::Host& host, const sdk::Params& params)
      : share_(params.number("share")),
        token_(params.integer("token")),
        // Ranks have other samples, and draw other places in them.
        seed_(static_cast<std::uint64_t>(params.integer("seed")) * host.world_size() + host.rank()) {}

  /// Called before each forward of the training, not of an evaluation.
  void batch(sdk::Batch& batch) {
    const capstan_tensor tokens = batch.tensor("input_ids");
    const sdk::Values values = sdk::values_of(tokens);
    if (values.dtype != sdk::Dtype::kInt64 || !sdk::on_cpu(tokens)) {
      throw sdk::Error("input_ids: takes int64 in host memory; this tensor is " + sdk::dtype_name(tokens) + ".");
    }
    auto* ids = static_cast<std::int64_t*>(values.data);
    const auto numel = static_cast<std::uint64_t>(sdk::numel_of(tokens));
    for (std::uint64_t i = 0; i < numel; ++i) {
      if (template_plugin_draw(seed_, batches_, i) < share_) ids[i] = token_;
    }
    ++batches_;
  }

  // A resumed run goes on as if it had never stopped.
  void save(const sdk::Sink& sink) { sink.write("{\"batches\": " + std::to_string(batches_) + "}"); }
  void load(const sdk::Document& saved) { batches_ = static_cast<std::uint64_t>(saved.integer("batches")); }

 private:
  double share_;
  std::int64_t token_;
  std::uint64_t seed_, batches_ = 0;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::observer<TemplatePlugin, "TemplatePlugin">)
