#include <algorithm>
#include <filesystem>
#include <utility>

#include "cli/commands.hpp"
#include "cli/plugins/plugins_verify.hpp"
#include "cli/program.hpp"
#include "cli/usage_error.hpp"
#include "core/errors.hpp"
#include "core/text/numbers.hpp"
#include "sdk/conformance/conformance.hpp"

namespace capstan::cli {

namespace {

Json parsed_params(const std::string& text) {
  Json params;
  try {
    params = Json::parse(text);
  } catch (const std::exception& error) {
    throw UsageError(std::string("--params: ") + error.what());
  }
  if (!params.is_object()) throw UsageError("--params: must be an object of parameters, got '" + text + "'.");
  return params;
}

void check_file(const std::string& file) {
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) {
    throw UsageError("'" + file + "' is a folder. Name a plugin's file, libcapstan_*.so.");
  }
  if (!std::filesystem::exists(file, error)) throw PluginError(file + ": there is no such file.");
}

void check_beside(const PluginsCheckArguments& arguments) {
  if (arguments.beside.empty()) return;
  if (arguments.device.empty()) {
    throw UsageError("--beside: is compared with updates on a device, and --device names none.");
  }
  check_file(arguments.beside);
}

void check_verify(const PluginsCheckArguments& arguments) {
  if (!arguments.verify) {
    if (!arguments.html.empty()) throw UsageError("--html: is the page of --verify, which is not given.");
    return;
  }
  if (!arguments.device.empty()) {
    throw UsageError(
        "--verify: trains on the CPU, and --device asks for the cases of another device. Give one of them.");
  }
  if (arguments.json) throw UsageError("--verify: prints a table, and --json asks for one document. Give one of them.");
  if (!can_be_verified(arguments.file)) {
    throw UsageError("--verify: trains with optimizers, schedules and models for the CPU, and '" + arguments.file +
                     "' has none.");
  }
}

/// "5 cases: 4 passed, 1 skipped."
std::string count_text(const std::vector<conformance::Result>& results) {
  const std::pair<conformance::Outcome, const char*> outcomes[] = {{conformance::Outcome::kPassed, "passed"},
                                                                   {conformance::Outcome::kFailed, "failed"},
                                                                   {conformance::Outcome::kSkipped, "skipped"},
                                                                   {conformance::Outcome::kNotTried, "not tried"}};
  std::string text;
  for (const auto& [outcome, word] : outcomes) {
    const auto count = std::count_if(results.begin(), results.end(),
                                     [&, of = outcome](const auto& result) { return result.outcome == of; });
    if (count > 0) text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + word;
  }
  return counted(static_cast<std::int64_t>(results.size()), "case") + ": " + text + ".\n";
}

}  // namespace

int plugins_check(const PluginsCheckArguments& arguments) {
  check_file(arguments.file);
  check_beside(arguments);
  check_verify(arguments);
  conformance::Options options;
  options.only = arguments.only;
  options.in_process = arguments.in_process;
  options.device = arguments.device;
  options.beside = arguments.beside;
  if (arguments.seed) options.seed = static_cast<std::uint64_t>(*arguments.seed);
  if (arguments.timeout) {
    if (*arguments.timeout < 1)
      throw UsageError("--timeout: is " + std::to_string(*arguments.timeout) + ", must be 1 or more.");
    options.timeout_s = static_cast<double>(*arguments.timeout);
  }
  if (!arguments.params.empty()) options.params = parsed_params(arguments.params);
  const auto results = conformance::check(arguments.file, options, [&](const conformance::Result& result) {
    if (!arguments.json) print(conformance::line(result, arguments.file, options) + "\n");
  });
  if (arguments.json) print(conformance::report(arguments.file, options, results).dump(2) + "\n");
  if (results.empty()) throw RuntimeFault(arguments.file + ": no case's name contains '" + arguments.only + "'.");
  if (!arguments.json) print(count_text(results));
  if (!conformance::passed(results)) return static_cast<int>(ExitCode::kPlugin);
  if (!arguments.verify) return 0;
  const int code = verify_plugin(arguments, options.params);
  return code == 1 ? static_cast<int>(ExitCode::kPlugin) : code;
}

}  // namespace capstan::cli
