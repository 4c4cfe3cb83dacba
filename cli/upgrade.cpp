#include "core/config/tools/upgrade.hpp"

#include "cli/commands.hpp"
#include "cli/program.hpp"
#include "core/config/resolve/command_line_problems.hpp"
#include "core/log.hpp"
#include "core/output_path.hpp"

namespace capstan::cli {
namespace {

/// Logs what the new text still has that its author should mend.
void say_what_is_left(const ConfigText& text) {
  ConfigContext context;
  context.world_known = false;
  context.check_only = true;
  const ConfigReading reading = read_config(text, context);
  for (const Problem& problem : reading.problems.all()) {
    if (problem.severity == Problem::Severity::kNotice) continue;
    log::warning("left as it is: " + shown(problem, text, context));
  }
}

}  // namespace

int upgrade(const UpgradeArguments& arguments) {
  const ConfigText text = read_config_text(arguments.file);
  const Upgraded out = upgrade_text(text);
  for (const std::string& change : out.changes) log::info(text.source + ": " + change);
  say_what_is_left({out.text, text.source, false});
  if (!arguments.in_place) {
    print(out.text);
  } else if (!out.changes.empty()) {
    replace_file(arguments.file, out.text);
  }
  return 0;
}

}  // namespace capstan::cli
