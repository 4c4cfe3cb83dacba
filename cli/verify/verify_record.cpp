#include "cli/verify/verify_record.hpp"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "cli/config_arguments.hpp"
#include "core/checkpoint/checkpoint_name.hpp"
#include "core/checkpoint/output_file.hpp"
#include "core/engine/engine.hpp"
#include "core/engine/kept_values.hpp"
#include "core/run/load_run.hpp"
#include "core/run/run_data.hpp"
#include "core/run/run_model.hpp"
#include "core/xxh3.hpp"

namespace capstan::cli {
namespace {

/// A digest for each row of a micro-batch, over all of its tensors.
std::vector<std::string> digests_of(const Batch& batch, std::int64_t rows) {
  std::vector<std::string> digests;
  for (std::int64_t row = 0; row < rows; ++row) {
    Xxh3 digest;
    for (const auto& [name, tensor] : batch.tensors) {
      if (tensor.dim() == 0 || tensor.size(0) != rows) continue;
      const at::Tensor values = tensor.select(0, row).contiguous();
      digest.update(values.const_data_ptr(), values.nbytes());
    }
    digests.push_back(hex(digest.digest()));
  }
  return digests;
}

class RecordedRun {
 public:
  RecordedRun(const VerifyArguments& arguments, const LoadedConfig& loaded, Model model)
      : arguments_(arguments),
        loaded_(loaded),
        data_(open_data(loaded.config.run.data_paths, "capstan.data.path", loaded, model)),
        order_(data_.samples(), loaded.config.run.seed, loaded.config.run.shuffle),
        engine_(std::move(model), loaded.config, loaded.plugins, loaded.communicator),
        kept_(engine_) {
    engine_.start_sampler(data_.samples(), data_.fingerprint());
    if (!loaded.config.run.teacher.empty()) engine_.load_teacher(loaded.config.run.teacher);
    if (!arguments.resume.empty()) {
      const CheckpointName name = CheckpointName::parse(arguments.resume);
      engine_.load_checkpoint(name.dir, name.tag);
    }
    facts_["parameters"] = Json::array();
    for (const NamedTensor& parameter : engine_.model().parameters()) {
      if (!kept_.trains(parameter.name)) continue;
      parameters_.push_back(parameter.name);
      facts_["parameters"].push_back(parameter.name);
    }
    facts_["first_step"] = engine_.progress().global_steps;
    for (const char* key : {"losses", "samples"}) facts_[key] = Json::array();
  }

  int run() {
    write_weights(RunRecord::first_weights(arguments_.record));
    const std::int64_t end = arguments_.until > 0 ? arguments_.until : arguments_.steps;
    while (engine_.progress().global_steps < end) step();
    write_weights(RunRecord::weights(arguments_.record));
    write_states();
    if (!arguments_.save.empty()) {
      engine_.save_checkpoint(arguments_.save);
      engine_.finish_saving();
    }
    facts_["draws"] = Json::array();
    if (draws_) facts_["draws"].push_back("LibTorch");
    // Last: the record is whole where this file is there.
    if (writes()) write_file(RunRecord::facts(arguments_.record), facts_.dump() + "\n");
    return 0;
  }

  /// Trains a step. Its gradients are in the record until those of another run with the same folder.
  void step() {
    const std::int64_t step = engine_.progress().global_steps;
    std::vector<std::string> seen;
    for (std::int64_t micro_step = 0; micro_step < loaded_.config.batch.gradient_accumulation_steps; ++micro_step) {
      Batch batch = data_.read(samples_of(engine_, order_, micro_step));
      for (std::string& digest : digests_of(batch, loaded_.config.batch.micro_batch_size)) seen.push_back(digest);
      const at::Tensor generator = state_of_generator();
      const at::Tensor loss = engine_.forward(batch);
      draws_ = draws_ || !at::equal(generator, state_of_generator());
      engine_.backward(loss);
    }
    write_gradients(step);
    // Before the update: with overlap_comm another thread sends parameters from there on.
    facts_["samples"].push_back(of_all_ranks(seen, step));
    engine_.step();
    const double loss = engine_.mean_loss();
    facts_["losses"].push_back(std::isfinite(loss) ? Json(loss) : Json("not finite"));
  }

 private:
  bool writes() const { return engine_.rank() == 0; }

  at::Tensor state_of_generator() const {
    at::Generator generator = at::globalContext().defaultGenerator(at::Device(loaded_.config.device));
    const std::lock_guard lock(generator.mutex());
    return generator.get_state();
  }

  Json of_all_ranks(const std::vector<std::string>& seen, std::int64_t step) const {
    std::string text;
    for (const std::string& digest : seen) text += digest;
    constexpr std::size_t kDigits = 16;
    std::vector<std::string> all;
    for (const std::string& of_rank :
         loaded_.communicator->all_gather_text("samples of step " + std::to_string(step), text, "verify")) {
      for (std::size_t at = 0; at < of_rank.size(); at += kDigits) all.push_back(of_rank.substr(at, kDigits));
    }
    std::sort(all.begin(), all.end());
    Json json = Json::array();
    for (const std::string& digest : all) json.push_back(digest);
    return json;
  }

  void write_gradients(std::int64_t step) const {
    write_whole(RunRecord::gradients(arguments_.record, step), KeptValues::kGradient);
  }
  void write_weights(const std::filesystem::path& file) const { write_whole(file, KeptValues::kMaster); }

  void write_states() const {
    const at::NoGradGuard no_grad;
    std::vector<SafetensorsEntry> entries;
    for (const std::string& parameter : parameters_) {
      for (const std::string& state : kept_.states(parameter)) {
        const at::Tensor values = kept_.whole({parameter, state});
        if (writes()) entries.push_back({parameter + "/" + state, values.cpu()});
      }
    }
    if (writes()) write_safetensors(RunRecord::states(arguments_.record), entries);
  }

  void write_whole(const std::filesystem::path& file, const char* what) const {
    const at::NoGradGuard no_grad;
    std::vector<SafetensorsEntry> entries;
    for (const std::string& name : parameters_) {
      const at::Tensor values = kept_.whole({name, what});
      if (writes() && values.defined()) entries.push_back({name, values.cpu()});
    }
    if (writes()) write_safetensors(file, entries);
  }

  const VerifyArguments& arguments_;
  const LoadedConfig& loaded_;
  Dataset data_;
  BatchOrder order_;
  Engine engine_;
  KeptValues kept_;
  std::vector<std::string> parameters_;
  Json facts_ = Json::object();
  bool draws_ = false;  // forward draws random numbers
};

}  // namespace

int record_run(const VerifyArguments& arguments) {
  LoadedConfig loaded = load_run(source_of(arguments.config), Purpose::kTraining);
  // The record is all that the command reads of this run, so monitors and progress lines would only cost time.
  loaded.config.monitors.clear();
  loaded.config.report.steps_per_print = std::nullopt;
  return run_as_one(loaded, [&] {
    if (arguments.second) RecordedRun(arguments, loaded, build_model(loaded)).step();
    return RecordedRun(arguments, loaded, build_model(loaded)).run();
  });
}

}  // namespace capstan::cli
