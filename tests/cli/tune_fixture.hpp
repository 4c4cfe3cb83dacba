#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/cli/programs.hpp"

namespace capstan::cli {

/// A program of one's own: by its flags it measures nothing but says how fast it is, a pure function of the
/// configuration, so that searches can be compared. It keeps what it was started with.
inline constexpr const char* kProgram = R"(#!/bin/sh
[ "${RANK:-0}" = 0 ] || exit 0
config=; micro=1; more=
while [ $# -gt 0 ]; do
  case $1 in
    --deepspeed_config) config=$2; shift;;
    --micro) micro=$2; shift;;
  esac
  shift
done
number() { sed -n "s/^ *\"$1\": \([0-9]*\).*/\1/p" "$config" | head -1; }
text() { sed -n "s/^ *\"$1\": \"\(.*\)\".*/\1/p" "$config" | head -1; }
info=$(text model_info_path); metric=$(text metric_path); stage=$(number stage); batch=$(number train_batch_size)
echo "stage $stage micro $micro" >> "$TUNE_TEST_LOG"
if [ -n "$info" ]; then
  echo "{\"num_params\": 1000, \"activation_mem_per_gpu\": $((micro * 1000)), \"rank\": 0}" > "$info.part"
  mv "$info.part" "$info"
  exit 0
fi
BEHAVIOUR
latency=$((10000 * stage + $(number gradient_accumulation_steps) * (1000 * micro + 5000)))
echo "{\"latency\": $latency, \"throughput\": $((batch * 1000000 / latency))$more}" > "$metric.part"
mv "$metric.part" "$metric"
)";

class Tune : public ::testing::Test {
 protected:
  Tune() { write_bytes(folder_ / "text.txt", some_text()); }

  void config(const std::string& rest) const {
    write_bytes(
        folder_ / "ds_config.json",
        R"({"optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "capstan": {"model": "mlp"}, )" + rest + "}");
  }
  void program(const std::string& behaviour = "") const {
    std::string text = kProgram;
    text.replace(text.find("BEHAVIOUR"), 9, behaviour);
    write_bytes(folder_ / "program.sh", text);
    std::filesystem::permissions(folder_ / "program.sh", std::filesystem::perms::owner_all);
  }
  ProcessOptions logged() const {
    ProcessOptions options;
    options.environment = {"TUNE_TEST_LOG=" + (folder_ / "log").string()};
    return options;
  }
  ProcessResult tune(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"tune", "--config", "ds_config.json", "--data", "text.txt"};
    words.insert(words.end(), more.begin(), more.end());
    return run_capstan(folder_, words);
  }
  std::vector<std::string> program_words(const std::vector<std::string>& own = {}) const {
    std::vector<std::string> words = {kCapstan, "tune"};
    words.insert(words.end(), own.begin(), own.end());
    for (const char* word : {"./program.sh", "--deepspeed_config", "ds_config.json", "--micro", "1"})
      words.emplace_back(word);
    return words;
  }
  ProcessResult tune_program(const std::vector<std::string>& own = {}) const {
    ProcessOptions options = logged();
    options.folder = folder_.path();
    return run_process(program_words(own), options);
  }
  std::string result(const std::string& file) const { return read_bytes(folder_ / ("autotuning_results/" + file)); }
  bool has(const std::string& file) const { return std::filesystem::exists(folder_ / ("autotuning_results/" + file)); }
  /// Not a zombie either.
  static bool lives(pid_t pid) {
    std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
    std::string text;
    std::getline(in, text);
    return text.find(") ") != std::string::npos && text[text.rfind(") ") + 2] != 'Z';
  }
  std::vector<std::string> started() const {
    std::vector<std::string> lines;
    std::ifstream in(folder_ / "log");
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }

  TemporaryFolder folder_;
};

}  // namespace capstan::cli
