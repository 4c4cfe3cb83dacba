#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/usage_error.hpp"

namespace capstan::cli {

using Words = std::vector<std::string>;

/// The value of a whole-number option. Throws UsageError.
std::int64_t whole_number(const std::string& option, const std::string& text);
/// "1500000000", "1500M", "1.5G": powers of ten. Throws UsageError.
std::int64_t byte_count(const std::string& option, const std::string& text);

/// A word out of `words`; anything else is misuse, with the nearest one named.
void choice_option(CLI::App& app, const std::string& name, std::string& target, const Words& words,
                   const std::string& description, bool required);
CLI::Option* text_option(CLI::App& app, const std::string& name, std::string& target, const char* value,
                         const std::string& description);
CLI::Option* flag(CLI::App& app, const std::string& name, bool& target, const std::string& description);
/// A number, 1 or more.
CLI::Option* count_option(CLI::App& app, const std::string& name, int& target, const std::string& description);
/// Calls `take` with a launcher's name for `option`, the number of processes, and its value: torchrun's
/// --nproc-per-node and DeepSpeed's --num_gpus, which help does not list.
void launcher_names(CLI::App& app, CLI::Option* option,
                    const std::function<void(const std::string& name, const std::string& value)>& take);
void plugin_path(CLI::App& app, Words& target);
void config_option(CLI::App& app, ConfigArguments& config);
/// The configuration as an argument, or behind --config as the commands that train take it.
CLI::Option* file_or_config(CLI::App& app, std::string& target, const std::string& description);

/// Options that stand for keys of the configuration.
class Overrides {
 public:
  Overrides(CLI::App& app, ConfigArguments& config) : app_(app), config_(config) {}

  void text(const char* name, const char* path, const char* value, const char* description);
  void integer(const char* name, const char* path, const char* description);
  void on(const char* name, const char* path, const char* description);
  /// A flag that empties the key.
  void none(const char* name, const char* path, const char* description);
  /// --model and, where the command may begin a training, --from-scratch.
  void model(const char* description, bool begins);
  void list(const char* name, const char* path, const char* description, const char* type = "PATH");
  /// The options that every command with a configuration has. --set comes last, so that it wins.
  void common();

  /// The option of `app` that sets a key of the configuration, or "".
  std::string option_of(const CLI::App& app, std::string_view path) const;

 private:
  CLI::App& app_;
  ConfigArguments& config_;
  std::vector<std::pair<std::string, std::string>> options_;  // name and key
};

}  // namespace capstan::cli
