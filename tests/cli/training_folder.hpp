#pragma once

#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.hpp"
#include "tests/core/data/temporary_folder.hpp"

namespace capstan::test {

/// A folder with a configuration, text to train on, and room for what a run writes. The model is so small that a step
/// takes a millisecond.
class TrainingFolder : public TemporaryFolder {
 public:
  TrainingFolder() {
    write_config("config.json", R"("optimizer": {"type": "AdamW", "params": {"lr": 1e-2}})",
                 R"({"type": "mlp", "params": {"d": 8, "hidden": 16, "seq": 16}})");
    std::string text;
    for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i * i) + " of the text;\n";
    write("text.txt", text);
  }

  void write_config(const std::string& name, const std::string& optimizer, const std::string& model) const {
    write(
        name,
        "{\"train_batch_size\": 4, \"gradient_accumulation_steps\": 2, \"steps_per_print\": 1, "
        "\"gradient_clipping\": 1.0,\n" +
            optimizer + ",\n" +
            "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_max_lr\": 1e-2, \"warmup_num_steps\": 8}},\n"
            "\"csv_monitor\": {\"enabled\": true, \"output_path\": \"" +
            path().string() +
            "\", \"job_name\": \"csv\"},\n"
            "\"capstan\": {\"model\": " +
            model + ", \"run\": {\"seed\": 7}}}\n");
  }

  /// `capstan train` in this folder: "--steps", "20", ... follow.
  std::vector<std::string> train(const std::vector<std::string>& more,
                                 const std::string& config = "config.json") const {
    std::vector<std::string> words{"train", "--config", path_of(config), "--data", path_of("text.txt")};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  std::string path_of(const std::string& name) const { return (path() / name).string(); }
};

}  // namespace capstan::test
