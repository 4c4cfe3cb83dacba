#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <list>
#include <optional>
#include <string>

#include "cli/arguments.hpp"
#include "cli/command_line.hpp"
#include "cli/command_options.hpp"

namespace capstan::cli {

/// One command: its place in CLI11's tree and what its options fill in.
template <class T>
struct Command {
  CLI::App* app;
  T arguments;
};

/// The whole definition. Lives until the arguments were taken: the options write into its members.
class Definition {
 public:
  Definition();
  Definition(const Definition&) = delete;

  CommandLine read(int argc, const char* const* argv);

 private:
  template <class T>
  CLI::App& begin(CLI::App& parent, const char* name, const char* description, const char* footer,
                  std::optional<Command<T>>& command) {
    command.emplace(Command<T>{parent.add_subcommand(name, description), T{}});
    command->app->footer(footer);
    finish(*command->app);
    return *command->app;
  }

  void finish(CLI::App& app) { app.get_formatter()->column_width(34); }
  void define_train();
  void define_tune();
  void define_launch();
  void define_eval();
  void define_generate();
  void define_analyze();
  void define_export();
  void define_plan();
  void define_verify();
  void define_checkpoint();
  void define_model();
  void define_attention();
  void define_validate();
  void define_schema();
  void define_report();
  void define_upgrade();
  void define_elastic();
  void define_data();
  void define_data_tokenize(CLI::App& data);
  void define_data_chat(CLI::App& data);
  void define_data_show(CLI::App& data);
  void define_data_stats(CLI::App& data);
  void define_plugins();
  void define_doctor();

  /// The innermost command that the line named.
  const CLI::App& deepest() const;
  CommandLine misuse(const std::string& message) const;
  std::string unknown_word() const;
  /// About required options and arguments that are missing, a line each, or empty.
  std::string missing() const;
  /// About an option that `app` does not have; `next` is the word after it.
  std::string unknown_option(const CLI::App& app, const std::string& word, const std::string& next) const;
  /// About all options that the innermost command does not have, a line each.
  std::string unknown_options(const std::vector<std::string>& words) const;
  LaunchArguments launch_arguments() const;
  TuneArguments tune_arguments() const;
  std::optional<Arguments> taken() const;

  CLI::App app_;
  std::list<Overrides> overrides_;
  std::optional<Command<TrainArguments>> train_;
  std::optional<Command<TuneArguments>> tune_;
  std::optional<Command<LaunchArguments>> launch_;
  std::optional<Command<EvalArguments>> eval_;
  std::optional<Command<GenerateArguments>> generate_;
  std::optional<Command<AnalyzeArguments>> analyze_;
  std::optional<Command<DataConvertArguments>> data_convert_;
  std::optional<Command<DataTokenizeArguments>> data_tokenize_;
  std::optional<Command<DataChatArguments>> data_chat_;
  std::optional<Command<DataShowArguments>> data_show_;
  std::optional<Command<DataStatsArguments>> data_stats_;
  std::optional<Command<ExportArguments>> export_;
  std::optional<Command<DoctorArguments>> doctor_;
  std::optional<Command<PlanArguments>> plan_;
  std::optional<Command<VerifyArguments>> verify_;
  std::optional<Command<CheckpointShowArguments>> checkpoint_show_;
  std::optional<Command<CheckpointListArguments>> checkpoint_list_;
  std::optional<Command<CheckpointPruneArguments>> checkpoint_prune_;
  std::optional<Command<CheckpointVerifyArguments>> checkpoint_verify_;
  std::optional<Command<CheckpointDiffArguments>> checkpoint_diff_;
  std::optional<Command<ModelShowArguments>> model_show_;
  std::optional<Command<AttentionShowArguments>> attention_show_;
  std::optional<Command<ValidateArguments>> validate_;
  std::optional<Command<SchemaArguments>> schema_;
  std::optional<Command<ReportArguments>> report_;
  std::optional<Command<UpgradeArguments>> upgrade_;
  std::optional<Command<ElasticArguments>> elastic_;
  std::optional<Command<PluginsCheckArguments>> check_;
  std::optional<Command<PluginsListArguments>> list_;
  std::optional<Command<PluginsInspectArguments>> inspect_;
  std::optional<Command<PluginsNewArguments>> new_;
  std::optional<Command<PluginsInstallArguments>> install_;
  std::optional<Command<PluginsRemoveArguments>> remove_;
};

}  // namespace capstan::cli
