#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/engine/engine.hpp"
#include "core/engine/initialize.hpp"

namespace capstan::testing {

/// A training run of a small gpt as a configuration says, with the probes' folder on the plugin path.
class ProbeRun {
 public:
  /// `observers` and the rest are members of the "capstan" section, or of the file, without braces.
  explicit ProbeRun(const std::string& capstan_members = "", const std::string& members = "",
                    const std::string& model = R"("layers": 4, "d": 32, "heads": 2, "seq": 16)",
                    std::shared_ptr<Communicator> ranks = nullptr) {
    const std::string comma = capstan_members.empty() ? "" : ", ";
    const std::string text =
        R"({"train_batch_size": )" + std::to_string(ranks ? 4 * ranks->size() : 4) +
        R"(, "steps_per_print": null, "gradient_clipping": 0,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}}, )" +
        members + (members.empty() ? "" : ", ") +
        R"("capstan": {"plugins": {"path": ")" CAPSTAN_TEST_BUILD_DIR R"(/tests/probe_plugins"}, )" +
        R"("model": {"type": "gpt", "params": {"init": "formula", )" + model + "}}" + comma + capstan_members + "}}";
    ConfigContext context;
    if (ranks) context.world_size = ranks->size();
    const Config config = load_config({text, "probe.json", false}, context, plugins_);
    const ComponentChoice& choice = *config.run.model;
    Registry registry(plugins_);
    Model built(registry.create(choice.where, "model", choice.type, choice.params, model_host()));
    engine = std::make_unique<Engine>(std::move(built), config, plugins_, std::move(ranks));
    sequence_ = engine->model().describe().at("sequence_length").as_integer();
  }

  /// Micro-batch `index` of a repeatable stream; the steps alternate between the first two, so that they can be learnt.
  Batch batch(std::int64_t index) const {
    const at::Tensor text = (torch::arange(4 * sequence_ + 1).square() * 7 + index * 31).remainder(251);
    Batch batch;
    batch.tensors = {{"input_ids", text.slice(0, 0, -1).view({4, sequence_})},
                     {"labels", text.slice(0, 1).view({4, sequence_})}};
    return batch;
  }

  double step() {
    return engine->train_batch([&] { return batch(next_++ % 2); });
  }
  std::vector<double> steps(int count) {
    std::vector<double> losses;
    for (int i = 0; i < count; ++i) losses.push_back(step());
    return losses;
  }

  at::Tensor parameter(const std::string& name) const {
    for (const NamedTensor& item : engine->model().parameters()) {
      if (item.name == name) return item.tensor.detach();
    }
    return {};
  }

 private:
  PluginIndex plugins_;

 public:
  std::unique_ptr<Engine> engine;

 private:
  std::int64_t sequence_ = 0;
  std::int64_t next_ = 0;
};

}  // namespace capstan::testing
