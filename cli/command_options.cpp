#include "cli/command_options.hpp"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "core/errors.hpp"
#include "core/text/nearest.hpp"

namespace capstan::cli {
namespace {

/// "path=value": the value as JSON where it is some, otherwise as a string.
std::pair<std::string, Json> assignment(const std::string& text) {
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw UsageError("--set: '" + text +
                     "' is not an assignment. Write it as key.path=value, for instance "
                     "optimizer.params.lr=3e-4.");
  }
  const std::string value = text.substr(equals + 1);
  try {
    return {text.substr(0, equals), Json::parse(value)};
  } catch (const ConfigError&) {
    return {text.substr(0, equals), value};
  }
}

}  // namespace

std::int64_t whole_number(const std::string& option, const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw UsageError(option + ": '" + text + "' is not a whole number.");
  }
  return value;
}

std::int64_t byte_count(const std::string& option, const std::string& text) {
  constexpr std::string_view kUnits = "kMGT";
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const auto power = unit.empty() ? 0 : kUnits.find(unit.front() == 'K' ? 'k' : unit.front()) + 1;
  const bool known =
      error == std::errc() && (unit.empty() || (power > 0 && (unit.size() == 1 || unit.substr(1) == "B")));
  for (std::size_t i = 0; known && i < power; ++i) value *= 1000;
  if (!known || value < 1 || value > 9e18) {
    throw UsageError(option + ": '" + text + "' is not a number of bytes. Write 1500000000, 1500M or 1.5G.");
  }
  return static_cast<std::int64_t>(value);
}

void choice_option(CLI::App& app, const std::string& name, std::string& target, const Words& words,
                   const std::string& description, bool required) {
  std::string all;
  for (const std::string& word : words) all += (all.empty() ? "" : "|") + word;
  app.add_option_function<std::string>(
         name,
         [&target, name, words, all](const std::string& given) {
           if (std::find(words.begin(), words.end(), given) == words.end()) {
             throw UsageError(name + ": must be " + all + ", got '" + given + "'." + suggestion(given, words));
           }
           target = given;
         },
         description)
      ->type_name(all)
      ->take_last()
      ->required(required);
}

CLI::Option* text_option(CLI::App& app, const std::string& name, std::string& target, const char* value,
                         const std::string& description) {
  return app.add_option(name, target, description)->type_name(value)->take_last();
}

CLI::Option* flag(CLI::App& app, const std::string& name, bool& target, const std::string& description) {
  return app.add_flag_function(
      name, [&target](std::int64_t) { target = true; }, description);
}

namespace {

int count_of(const std::string& name, const std::string& given) {
  const std::int64_t count = whole_number(name, given);
  if (count < 1 || count > 1'000'000) throw UsageError(name + ": must be 1 to 1,000,000, got " + given + ".");
  return static_cast<int>(count);
}

}  // namespace

CLI::Option* count_option(CLI::App& app, const std::string& name, int& target, const std::string& description) {
  CLI::Option* option =
      app.add_option_function<std::string>(
             name, [&target, name](const std::string& given) { target = count_of(name, given); }, description)
          ->type_name("N")
          ->take_last();
  if (name.starts_with("-n,")) {
    launcher_names(app, option,
                   [&target](const std::string& as, const std::string& given) { target = count_of(as, given); });
  }
  return option;
}

void launcher_names(CLI::App& app, CLI::Option* option,
                    const std::function<void(const std::string&, const std::string&)>& take) {
  for (const std::string name : {"--nproc-per-node", "--nproc_per_node", "--num-gpus", "--num_gpus"}) {
    app.add_option_function<std::string>(name,
                                         [name, take, option](const std::string& given) {
                                           if (option->count() > 0)
                                             throw UsageError("-n and " + name + " are the same: give one of them.");
                                           take(name, given);
                                         })
        ->group("")  // not in the help
        ->take_last();
  }
}

void plugin_path(CLI::App& app, Words& target) {
  app.add_option("--plugin-path", target, "Folder searched for plugins before all others; may be repeated")
      ->type_name("DIR")
      ->expected(1)
      ->allow_extra_args(false)  // what follows may be a program
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void config_option(CLI::App& app, ConfigArguments& config) {
  text_option(app, "-c,--config", config.file, "FILE",
              "Configuration, JSON, TOML or YAML; without it, the default one that comes with Capstan");
}

CLI::Option* file_or_config(CLI::App& app, std::string& target, const std::string& description) {
  CLI::Option* file = text_option(app, "file", target, "FILE", description);
  text_option(app, "-c,--config", target, "FILE", "The configuration, in place of the argument")->excludes(file);
  return file;
}

void Overrides::text(const char* name, const char* path, const char* value, const char* description) {
  options_.emplace_back(name, path);
  app_.add_option_function<std::string>(
          name, [this, path](const std::string& given) { config_.overrides.emplace_back(path, given); }, description)
      ->type_name(value)
      ->take_last();
}

void Overrides::integer(const char* name, const char* path, const char* description) {
  options_.emplace_back(name, path);
  app_.add_option_function<std::string>(
          name,
          [this, name, path](const std::string& given) {
            config_.overrides.emplace_back(path, whole_number(name, given));
          },
          description)
      ->type_name("N")
      ->take_last();
}

void Overrides::on(const char* name, const char* path, const char* description) {
  options_.emplace_back(name, path);
  app_.add_flag_function(
      name, [this, path](std::int64_t) { config_.overrides.emplace_back(path, true); }, description);
}

void Overrides::none(const char* name, const char* path, const char* description) {
  options_.emplace_back(name, path);
  app_.add_flag_function(
      name, [this, path](std::int64_t) { config_.overrides.emplace_back(path, ""); }, description);
}

void Overrides::model(const char* description, bool begins) {
  text("--model", "capstan.model", "TYPE[:SIZE]|hf:FOLDER|FILE.gguf", description);
  if (!begins) return;
  none("--from-scratch", "capstan.model.weights",
       "Initial values of its own for a model of hf:FOLDER or FILE.gguf, in place of the weights there");
}

void Overrides::list(const char* name, const char* path, const char* description, const char* type) {
  options_.emplace_back(name, path);
  app_.add_option_function<Words>(
          name,
          [this, path](const Words& given) {
            Json values = Json::array();
            for (const std::string& one : given) values.push_back(one);
            config_.overrides.emplace_back(path, values);
          },
          description)
      ->type_name(type);
}

void Overrides::common() {
  plugin_path(app_, config_.plugin_paths);
  const auto lenient = flag(app_, "--lenient", config_.lenient,
                            "Unknown keys of the configuration are warnings, but near misses of a key stay errors");
  flag(app_, "--strict", config_.strict, "Other programs' options in the configuration are errors, not warnings")
      ->excludes(lenient);
  app_.add_option_function<Words>(
          "--set",
          [this](const Words& given) {
            for (const std::string& one : given) config_.overrides.push_back(assignment(one));
          },
          "Sets any key of the configuration; may be repeated")
      ->type_name("KEY.PATH=VALUE")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

std::string Overrides::option_of(const CLI::App& app, std::string_view path) const {
  if (&app != &app_) return "";
  for (const auto& [name, key] : options_) {
    if (key == path) return name;
  }
  return "";
}

}  // namespace capstan::cli
