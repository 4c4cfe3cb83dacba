#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <string>
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
void count_option(CLI::App& app, const std::string& name, int& target, const std::string& description);
void plugin_path(CLI::App& app, Words& target);
void config_option(CLI::App& app, ConfigArguments& config);

/// Options that stand for keys of the configuration.
class Overrides {
 public:
  Overrides(CLI::App& app, ConfigArguments& config) : app_(app), config_(config) {}

  void text(const char* name, const char* path, const char* value, const char* description);
  void integer(const char* name, const char* path, const char* description);
  void on(const char* name, const char* path, const char* description);
  void list(const char* name, const char* path, const char* description);
  /// The options that every command with a configuration has. --set comes last, so that it wins.
  void common();

 private:
  CLI::App& app_;
  ConfigArguments& config_;
};

}  // namespace capstan::cli
