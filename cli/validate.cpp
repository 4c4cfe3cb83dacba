#include <algorithm>
#include <utility>

#include "cli/commands.hpp"
#include "cli/config_arguments.hpp"
#include "cli/plugins/plugin_text.hpp"
#include "cli/program.hpp"
#include "cli/trackers.hpp"
#include "cli/usage_error.hpp"
#include "core/config/resolve/command_line_problems.hpp"
#include "core/config/resolve/launcher_world.hpp"
#include "core/config/tools/explain.hpp"
#include "core/config/tools/gpu_verdict.hpp"
#include "core/errors.hpp"
#include "core/text/numbers.hpp"

namespace capstan::cli {
namespace {

const char* severity_text(Problem::Severity severity) {
  switch (severity) {
    case Problem::Severity::kError:
      return "error";
    case Problem::Severity::kWarning:
      return "warning";
    case Problem::Severity::kNotice:
      break;
  }
  return "notice";
}

Json problems_json(const ConfigText& text, const ConfigContext& context, const Problems& problems) {
  Json json = Json::object();
  json["file"] = text.source;
  json["valid"] = !problems.has_errors();
  json["problems"] = Json::array();
  for (const Problem& problem : problems.all()) {
    Json entry = Json::object();
    entry["severity"] = severity_text(problem.severity);
    entry["path"] = problem.path;
    entry["message"] = problem.message;
    if (is_of_command_line(problem, context)) {
      entry["from"] = "command line";
    } else if (problem.line > 0) {
      entry["line"] = problem.line;
      entry["column"] = problem.column;
    }
    json["problems"].push_back(entry);
  }
  return json;
}

std::string problems_text(const ConfigText& given, const ConfigContext& context, const Problems& problems) {
  std::string text;
  std::int64_t errors = 0, warnings = 0;
  // Errors come last, where a terminal still shows them.
  std::vector<Problem> sorted = problems.all();
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Problem& a, const Problem& b) { return a.severity > b.severity; });
  for (const Problem& problem : sorted) {
    errors += problem.severity == Problem::Severity::kError;
    warnings += problem.severity == Problem::Severity::kWarning;
    text += std::string(severity_text(problem.severity)) + ": " + shown(problem, given, context) + "\n";
  }
  return text + given.source + ": " + (errors ? "not valid: " + counted(errors, "error") : "valid") +
         (warnings ? ", " + counted(warnings, "warning") : "") + ".\n";
}

}  // namespace

int validate(const ValidateArguments& arguments) {
  if (!arguments.explain.empty()) {
    print(explain_key(arguments.explain, scan_plugins(arguments.config.plugin_paths)));
    return 0;
  }
  if (arguments.config.file.empty()) {
    throw UsageError("validate needs a configuration file, or --explain and a key.");
  }
  ConfigContext context = config_context(arguments.config);
  const LauncherWorld launcher = launcher_world();
  context.world_size = arguments.world_given ? arguments.world : launcher.size;
  context.world_size_origin = arguments.world_given ? "--world" : launcher.origin;
  context.world_known = arguments.world_given || launcher.known;
  context.check_only = true;
  context.trains_alone = true;
  const bool piped = arguments.config.file == "-";
  const ConfigText text =
      piped ? ConfigText{read_config_text("/dev/stdin").text, "standard input", false} : config_text(arguments.config);
  ConfigReading reading = read_config(text, context);
  Problems& problems = reading.problems;
  if (reading.config) {
    if (auto notice = refused_on_gpus(text, context, *reading.config, reading.plugins))
      problems.all().push_back(std::move(*notice));
    for (Problem& notice : missing_trackers(*reading.config, reading.plugins)) {
      problems.all().push_back(std::move(notice));
    }
  }
  print(arguments.json ? problems_json(text, context, problems).dump(2) + "\n"
                       : problems_text(text, context, problems));
  return problems.has_errors() ? static_cast<int>(ExitCode::kConfig) : 0;
}

}  // namespace capstan::cli
