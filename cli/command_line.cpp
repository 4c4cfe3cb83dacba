#include "cli/command_line.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <utility>

#include "cli/command_definition.hpp"
#include "cli/foreign_options.hpp"
#include "cli/help_texts.hpp"
#include "cli/version.hpp"
#include "core/errors.hpp"
#include "core/text/nearest.hpp"

namespace capstan::cli {
namespace {

/// "capstan plugins list"
std::string full_name(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent ? full_name(*parent) + " " + app.get_name() : app.get_name();
}

void require_file(const std::string& file) {
  if (file.empty()) throw UsageError("FILE is required: the configuration.");
}

std::string help_text(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return app.help(parent ? full_name(*parent) : "");
}

void check_launch(const LaunchArguments& arguments) {
  if (arguments.rdzv.empty() && !arguments.rdzv_secret_file.empty()) {
    throw UsageError("launch: --rdzv-secret-file has no effect without --rdzv.");
  }
  if (arguments.status) return;
  const auto& elastic = arguments.elastic;
  if (arguments.witness && (!elastic || arguments.rdzv.empty())) {
    throw UsageError(
        "-n: 1 to 1024 processes, got 0. A launcher without processes, which only decides with those of other hosts "
        "which of them go on, needs --elastic and --rdzv.");
  }
  if (!elastic && arguments.spares > 0) throw UsageError("launch: --spares has no effect without --elastic.");
  if (!elastic && arguments.processes == 0) {
    const std::string first = arguments.command.empty() ? "" : arguments.command.front();
    if (!first.empty() && first.find_first_not_of("0123456789") == std::string::npos) {
      throw UsageError("launch: '" + first + "' is not a command. Write -n " + first + " for the number of processes.");
    }
    throw UsageError("launch: how many processes? For instance: capstan launch -n 2 train --config ds_config.json.");
  }
  if (!elastic && !arguments.rdzv.empty()) throw UsageError("launch: --rdzv has no effect without --elastic.");
  if (!elastic && !arguments.config.file.empty()) {
    throw UsageError(
        "launch: --config has no effect without --elastic. It is an option of 'capstan train': write it "
        "behind 'train'.");
  }
  if (!arguments.rdzv.empty() && arguments.processes == 0 && !arguments.witness) {
    throw UsageError(
        "launch: --rdzv needs -n, the number of processes on this host; MIN:MAX of --elastic count those "
        "of all hosts.");
  }
  const int least = elastic && arguments.rdzv.empty() ? elastic->least : 1;
  if (elastic && arguments.processes > 0 && (arguments.processes < least || arguments.processes > elastic->most)) {
    throw UsageError("launch: -n " + std::to_string(arguments.processes) + " is not between MIN and MAX of --elastic " +
                     std::to_string(elastic->least) + ":" + std::to_string(elastic->most) + ".");
  }
  if (arguments.command.empty()) {
    throw UsageError("launch: what is to be started? For instance: capstan launch -n 2 train --config ds_config.json.");
  }
}

/// The file of a program that is named without a '/', or "".
std::string program_in_path(const std::string& word) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::filesystem::path file = std::filesystem::path(folder.empty() ? "." : folder) / word;
    std::error_code error;
    if (std::filesystem::is_regular_file(file, error) && access(file.c_str(), X_OK) == 0) {
      return file.has_parent_path() ? file.string() : "./" + file.string();
    }
  }
  return "";
}

bool is_configuration(const std::string& word) { return word.ends_with(".json") || word.ends_with(".toml"); }

/// " Did you mean '--data corpus'?" for a file or a folder that a command takes behind an option.
std::string option_for_file(const CLI::App& app, const std::string& word) {
  std::error_code error;
  const char* option = is_configuration(word) ? "--config" : std::filesystem::exists(word, error) ? "--data" : nullptr;
  if (!option || !app.get_option_no_throw(option)) return "";
  return " Did you mean '" + std::string(option) + " " + word + "'?";
}

/// Advice for a word that is not a program; `otherwise` where nothing is known.
std::string how_to_start(const std::string& word, const std::string& otherwise = "") {
  if (is_configuration(word)) return " Write --config " + word + " for a configuration.";
  if (word.ends_with(".py")) return " Write python3 " + word + " to start a Python program.";
  std::error_code error;
  if (std::filesystem::is_regular_file(word, error)) return " Write ./" + word + " for the file in this folder.";
  return otherwise;
}

/// The answer to a launched command of capstan that is misused or asks for help.
struct Answered {
  CommandLine line;
};

/// Reads a command of capstan before it is launched, so that a mistake is printed once and not by each rank.
void check_command(const Words& command) {
  std::vector<const char*> words{"capstan"};
  for (const std::string& word : command) words.push_back(word.c_str());
  CommandLine line = read_command_line(static_cast<int>(words.size()), words.data());
  if (!line.arguments) throw Answered{std::move(line)};
}

}  // namespace

Definition::Definition() : app_(kDescription, "capstan") {
  app_.footer(kExitCodes);
  app_.require_subcommand(1);
  app_.set_version_flag("--version", version_text, "Print the versions of Capstan, its plugin ABI and LibTorch");
  define_train();
  define_tune();
  define_eval();
  define_generate();
  define_analyze();
  define_export();
  define_plan();
  define_verify();
  define_checkpoint();
  define_model();
  define_attention();
  define_validate();
  define_schema();
  define_report();
  define_upgrade();
  define_elastic();
  define_launch();
  define_data();
  define_plugins();
  define_doctor();
  finish(app_);
}

const CLI::App& Definition::deepest() const {
  const CLI::App* at = &app_;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return *at;
}

CommandLine Definition::misuse(const std::string& message) const {
  const std::string command = full_name(deepest());
  return {{},
          "capstan: error: " + message + "\n'" + command + " --help' lists what there is.\n",
          static_cast<int>(ExitCode::kUsage)};
}

std::string Definition::unknown_option(const CLI::App& app, const std::string& word, const std::string& next) const {
  const std::string name = word.substr(0, word.find('='));
  std::string text = "unknown option '" + name + "' of '" + full_name(app) + "'.";
  if (app.get_option_no_throw("--set") || &app == launch_->app) {
    const std::string advice = foreign_option_advice(
        word, next,
        [&](std::string_view path) {
          std::string option;
          for (const Overrides& keys : overrides_) option += keys.option_of(app, path);
          return option;
        },
        app.get_option_no_throw("--world") ? "--world" : "");
    if (!advice.empty()) return text + advice;
  }
  Words known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& one : option->get_lnames()) known.push_back("--" + one);
  }
  return text + suggestion(name, known);
}

std::string Definition::unknown_options(const Words& words) const {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (!words[i].starts_with('-')) continue;
    text += (text.empty() ? "" : "\ncapstan: error: ") +
            unknown_option(deepest(), words[i], i + 1 < words.size() ? words[i + 1] : "");
  }
  return text;
}

/// About what no command knows, or empty.
std::string Definition::unknown_word() const {
  const CLI::App& app = deepest();
  const Words words = app_.remaining(true);
  if (words.empty()) return "";
  const std::string& word = words.front();
  if (word.starts_with('-')) return unknown_options(words);
  Words known;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    known.push_back(command->get_name());
  }
  if (known.empty()) {
    return "'" + full_name(app) + "' does not take the argument '" + word + "'." +
           (word == "help" ? " Did you mean '--help'?" : option_for_file(app, word));
  }
  std::string all;
  for (const std::string& name : known) all += (all.empty() ? "" : ", ") + name;
  return "'" + full_name(app) + "' has no command '" + word + "'." +
         (word == "help" ? " Did you mean '--help'?" : suggestion(word, known)) + " It has: " + all + ".";
}

std::string Definition::missing() const {
  std::string text;
  for (const CLI::Option* option : deepest().get_options()) {
    if (!option->get_required() || option->count() > 0) continue;
    const std::string name = option->get_positional() ? option->get_type_name() : option->get_name();
    text += (text.empty() ? "" : "\ncapstan: error: ") + name + " is required: " + option->get_description() + ".";
  }
  return text;
}

TuneArguments Definition::tune_arguments() const {
  TuneArguments arguments = tune_->arguments;
  arguments.program = tune_->app->remaining();
  if (!arguments.program.empty() && arguments.program.front().find('/') == std::string::npos) {
    const std::string& word = arguments.program.front();
    if (word.starts_with('-')) {
      throw UsageError(unknown_option(*tune_->app, word, arguments.program.size() > 1 ? arguments.program[1] : ""));
    }
    const std::string program = program_in_path(word);
    if (program.empty()) throw UsageError("tune: '" + word + "' is not a program in PATH." + how_to_start(word));
    arguments.program.front() = program;
  }
  if (!arguments.program.empty() && !arguments.config.file.empty()) {
    throw UsageError(
        "tune: --config stands before the program, and a program has its configuration among its own "
        "arguments. Move it behind '" +
        arguments.program.front() + "'.");
  }
  if (!arguments.record.empty() && !arguments.replay.empty()) {
    throw UsageError("tune: --record and --replay exclude each other.");
  }
  return arguments;
}

LaunchArguments Definition::launch_arguments() const {
  LaunchArguments arguments = launch_->arguments;
  arguments.command = launch_->app->remaining();
  if (!arguments.command.empty() && arguments.command.front().starts_with('-')) {
    const Words& words = arguments.command;
    const std::string name = words.front().substr(0, words.front().find('='));
    if (train_->app->get_option_no_throw(name)) {
      throw UsageError("unknown option '" + name +
                       "' of 'capstan launch'. It is an option of 'capstan train': write it "
                       "behind 'train'.");
    }
    throw UsageError(unknown_option(*launch_->app, words.front(), words.size() > 1 ? words[1] : ""));
  }
  check_launch(arguments);
  if (arguments.command.empty()) return arguments;  // --status
  std::string& word = arguments.command.front();
  if (word.find('/') != std::string::npos) return arguments;
  const auto commands = app_.get_subcommands([](const CLI::App*) { return true; });
  if (std::any_of(commands.begin(), commands.end(), [&](const CLI::App* one) { return one->get_name() == word; })) {
    check_command(arguments.command);
    return arguments;
  }
  const std::string program = program_in_path(word);
  if (program.empty()) {
    Words names;
    for (const CLI::App* command : commands) names.push_back(command->get_name());
    throw UsageError("launch: '" + word + "' is neither a command of capstan nor a program in PATH." +
                     how_to_start(word, suggestion(word, names)));
  }
  word = program;
  return arguments;
}

std::optional<Arguments> Definition::taken() const {
  if (launch_->app->parsed()) return launch_arguments();
  if (tune_->app->parsed()) return tune_arguments();
  if (train_->app->parsed()) return train_->arguments;
  if (eval_->app->parsed()) return eval_->arguments;
  if (generate_->app->parsed()) return generate_->arguments;
  if (analyze_->app->parsed()) return analyze_->arguments;
  if (data_convert_->app->parsed()) return data_convert_->arguments;
  if (data_chat_->app->parsed()) return data_chat_->arguments;
  if (data_tokenize_->app->parsed()) return data_tokenize_->arguments;
  if (data_show_->app->parsed()) return data_show_->arguments;
  if (data_stats_->app->parsed()) return data_stats_->arguments;
  if (export_->app->parsed()) return export_->arguments;
  if (doctor_->app->parsed()) return doctor_->arguments;
  if (plan_->app->parsed()) return plan_->arguments;
  if (verify_->app->parsed()) return verify_->arguments;
  if (checkpoint_show_->app->parsed()) return checkpoint_show_->arguments;
  if (checkpoint_list_->app->parsed()) return checkpoint_list_->arguments;
  if (checkpoint_prune_->app->parsed()) return checkpoint_prune_->arguments;
  if (checkpoint_verify_->app->parsed()) return checkpoint_verify_->arguments;
  if (checkpoint_diff_->app->parsed()) return checkpoint_diff_->arguments;
  if (model_show_->app->parsed()) return model_show_->arguments;
  if (attention_show_->app->parsed()) return attention_show_->arguments;
  if (validate_->app->parsed()) return validate_->arguments;
  if (schema_->app->parsed()) return schema_->arguments;
  if (report_->app->parsed()) return report_->arguments;
  if (upgrade_->app->parsed()) {
    require_file(upgrade_->arguments.file);
    return upgrade_->arguments;
  }
  if (elastic_->app->parsed()) {
    require_file(elastic_->arguments.config.file);
    return elastic_->arguments;
  }
  if (check_->app->parsed()) return check_->arguments;
  if (list_->app->parsed()) return list_->arguments;
  if (inspect_->app->parsed()) return inspect_->arguments;
  if (new_->app->parsed()) return new_->arguments;
  if (install_->app->parsed()) return install_->arguments;
  if (remove_->app->parsed()) return remove_->arguments;
  return std::nullopt;
}

CommandLine Definition::read(int argc, const char* const* argv) {
  try {
    app_.parse(argc, argv);
    return {taken(), "", 0};
  } catch (const Answered& answer) {
    return answer.line;
  } catch (const CLI::CallForHelp&) {
    // 'capstan help trian' asks for a command that is not there.
    const bool has_commands = !deepest().get_subcommands([](const CLI::App*) { return true; }).empty();
    const std::string unknown = has_commands ? unknown_word() : "";
    if (!unknown.empty()) return misuse(unknown);
    return {{}, help_text(deepest()), 0};
  } catch (const CLI::CallForVersion& version) {
    return {{}, std::string(version.what()) + "\n", 0};
  } catch (const UsageError& error) {
    return misuse(error.what());
  } catch (const CLI::ParseError& error) {
    // A misspelt word makes other things missing: it is the cause, so it is what is said.
    // The words behind launch and tune are those of a command.
    const std::string unknown = deepest().get_prefix_command() ? "" : unknown_word();
    if (!unknown.empty()) return misuse(unknown);
    if (deepest().get_subcommands([](const CLI::App*) { return true; }).size() > 0) {
      return {{}, help_text(deepest()), static_cast<int>(ExitCode::kUsage)};
    }
    if (error.get_name() == "RequiredError") {
      if (const std::string lacks = missing(); !lacks.empty()) return misuse(lacks);
    }
    return misuse(std::string(error.what()) + ".");
  }
}

CommandLine read_command_line(int argc, const char* const* argv) {
  std::vector<const char*> words(argv, argv + argc);
  // The words 'help' and 'version' in the place of a command are the options.
  if (words.size() > 1 && words[1] == std::string_view("help")) {
    words.erase(words.begin() + 1);
    words.push_back("--help");
  } else if (words.size() == 2 && words[1] == std::string_view("version")) {
    words[1] = "--version";
  }
  Definition definition;
  return definition.read(static_cast<int>(words.size()), words.data());
}

}  // namespace capstan::cli
