#include "cli/commands.hpp"
#include "cli/program.hpp"
#include "core/errors.hpp"
#include "sdk/conformance/conformance.hpp"

namespace capstan::cli {

namespace {

Json parsed_params(const std::string& text) {
  Json params;
  try {
    params = Json::parse(text);
  } catch (const std::exception& error) {
    throw ConfigError(std::string("--params: ") + error.what());
  }
  if (!params.is_object()) throw ConfigError("--params: must be an object of parameters, got '" + text + "'.");
  return params;
}

}  // namespace

int plugins_check(const PluginsCheckArguments& arguments) {
  conformance::Options options;
  options.only = arguments.only;
  options.in_process = arguments.in_process;
  if (arguments.seed) options.seed = static_cast<std::uint64_t>(*arguments.seed);
  if (arguments.timeout) {
    if (*arguments.timeout < 1)
      throw ConfigError("--timeout: is " + std::to_string(*arguments.timeout) + ", must be 1 or more.");
    options.timeout_s = static_cast<double>(*arguments.timeout);
  }
  if (!arguments.params.empty()) options.params = parsed_params(arguments.params);
  const auto results = conformance::check(arguments.file, options, [&](const conformance::Result& result) {
    if (!arguments.json) print(conformance::line(result, arguments.file, options) + "\n");
  });
  if (arguments.json) print(conformance::report(arguments.file, options, results).dump(2) + "\n");
  if (results.empty()) throw RuntimeFault(arguments.file + ": no case's name contains '" + arguments.only + "'.");
  return conformance::passed(results) ? 0 : static_cast<int>(ExitCode::kPlugin);
}

}  // namespace capstan::cli
