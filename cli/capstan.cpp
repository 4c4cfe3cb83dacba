// The program `capstan`: what needs no LibTorch runs here, everything else in capstan-engine or, for `plugins check`,
// capstan-conformance, which take this process over with the same arguments.

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "cli/commands.hpp"
#include "cli/program.hpp"
#include "cli/run_program.hpp"
#include "cli/torch_folder.hpp"
#include "core/errors.hpp"

namespace capstan::cli {
namespace {

[[noreturn]] void become(const char* program, char** argv, const std::string& remedy) {
  const std::string file = (install_prefix() / "libexec" / program).string();
  if (access(file.c_str(), X_OK) == 0) export_torch_lib_dir();
  execv(file.c_str(), argv);
  throw RuntimeFault(file + ": cannot be started: " + std::strerror(errno) + ". This command needs it; " + remedy);
}

struct Run {
  char** argv;
  int operator()(const ValidateArguments& arguments) const { return validate(arguments); }
  int operator()(const SchemaArguments& arguments) const { return schema(arguments); }
  int operator()(const ReportArguments& arguments) const { return report(arguments); }
  int operator()(const UpgradeArguments& arguments) const { return upgrade(arguments); }
  int operator()(const ElasticArguments& arguments) const { return elastic(arguments); }
  int operator()(const LaunchArguments& arguments) const { return launch(arguments); }
  int operator()(const DataConvertArguments& arguments) const { return data_convert(arguments); }
  int operator()(const DataTokenizeArguments& arguments) const { return data_tokenize(arguments); }
  int operator()(const DataChatArguments& arguments) const { return data_chat(arguments); }
  int operator()(const DataShowArguments& arguments) const { return data_show(arguments); }
  int operator()(const DataStatsArguments& arguments) const { return data_stats(arguments); }
  int operator()(const PluginsListArguments& arguments) const { return plugins_list(arguments); }
  int operator()(const PluginsInspectArguments& arguments) const { return plugins_inspect(arguments); }
  int operator()(const PluginsInstallArguments& arguments) const { return plugins_install(arguments); }
  int operator()(const PluginsRemoveArguments& arguments) const { return plugins_remove(arguments); }
  int operator()(const PluginsNewArguments& arguments) const { return plugins_new(arguments); }
  int operator()(const AnalyzeArguments& arguments) const {
    // The processes of one analysis are those of a launch, each of which comes here again.
    if (arguments.processes > 1 && std::getenv("RANK") == nullptr) {
      LaunchArguments processes{.processes = arguments.processes, .command = {}};
      for (char** word = argv + 1; *word != nullptr; ++word) processes.command.emplace_back(*word);
      return launch(processes);
    }
    become("capstan-engine", argv, "install Capstan as a whole.");
  }
  int operator()(const PluginsCheckArguments&) const {
    become("capstan-conformance", argv,
           "scripts/train builds without it. Build everything, as scripts/test does, and install again.");
  }
  template <class T>
  int operator()(const T&) const {
    become("capstan-engine", argv, "install Capstan as a whole.");
  }
};

}  // namespace
}  // namespace capstan::cli

int main(int argc, char** argv) { return capstan::cli::run_program(argc, argv, capstan::cli::Run{argv}); }
