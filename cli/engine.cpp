// The program `capstan-engine`: the commands that need LibTorch. `capstan` starts it.

#include <csignal>

#include "cli/commands.hpp"
#include "cli/program.hpp"
#include "cli/run_program.hpp"
#include "core/errors.hpp"
#include "core/registry/guilty_plugin.hpp"

namespace capstan::cli {
namespace {

struct Run {
  int operator()(const TrainArguments& arguments) const { return train(arguments); }
  int operator()(const TuneArguments& arguments) const { return tune(arguments); }
  int operator()(const EvalArguments& arguments) const { return evaluate(arguments); }
  int operator()(const GenerateArguments& arguments) const { return generate(arguments); }
  int operator()(const AnalyzeArguments& arguments) const { return analyze(arguments); }
  int operator()(const ExportArguments& arguments) const { return export_weights(arguments); }
  int operator()(const DoctorArguments& arguments) const { return doctor(arguments); }
  int operator()(const PlanArguments& arguments) const { return plan(arguments); }
  int operator()(const VerifyArguments& arguments) const { return verify(arguments); }
  int operator()(const CheckpointShowArguments& arguments) const { return checkpoint_show(arguments); }
  int operator()(const CheckpointListArguments& arguments) const { return checkpoint_list(arguments); }
  int operator()(const CheckpointPruneArguments& arguments) const { return checkpoint_prune(arguments); }
  int operator()(const CheckpointVerifyArguments& arguments) const { return checkpoint_verify(arguments); }
  int operator()(const CheckpointDiffArguments& arguments) const { return checkpoint_diff(arguments); }
  int operator()(const ModelShowArguments& arguments) const { return model_show(arguments); }
  int operator()(const AttentionShowArguments& arguments) const { return attention_show(arguments); }
  template <class T>
  int operator()(const T&) const {
    throw RuntimeFault("capstan-engine does not run this command. Start it as 'capstan'.");
  }
};

}  // namespace
}  // namespace capstan::cli

// LibTorch's libraries take memory while they are initialised, before main(): only this list of the program's comes
// earlier.
[[gnu::section(".preinit_array"),
  gnu::used]] static void (*before_libraries)() = capstan::cli::end_orderly_without_memory;

int main(int argc, char** argv) {
  // A file that reaches the limit of `ulimit -f` is an error of the write, told with the file's name; not a death.
  std::signal(SIGXFSZ, SIG_IGN);
  capstan::name_guilty_plugins();
  return capstan::cli::run_program(argc, argv, capstan::cli::Run{});
}
