#include "cli/config_arguments.hpp"

#include <algorithm>
#include <string_view>

#include "cli/program.hpp"

namespace capstan::cli {

std::string default_config_file() { return (install_prefix() / "share/capstan/default.json").string(); }

ConfigText config_text(const ConfigArguments& arguments) {
  if (!arguments.file.empty()) return read_config_text(arguments.file);
  ConfigText text = read_config_text(default_config_file());
  text.source = "the default configuration (" + text.source + ")";
  text.has_places = false;  // the user has not written it
  return text;
}

namespace {

/// Where the command line names another type, the parameters of the default one go: they are not the user's.
void drop_default_params(ConfigContext& context) {
  const Json built_in = Json::parse(read_config_text(default_config_file()).text);
  for (const char* section : {"optimizer", "scheduler"}) {
    const std::string type = std::string(section) + ".type";
    const auto named = std::find_if(context.overrides.rbegin(), context.overrides.rend(),
                                    [&](const auto& given) { return given.first == type; });
    if (named == context.overrides.rend() || named->second == built_in.at(section).at("type")) continue;
    context.overrides.emplace(context.overrides.begin(), std::string(section) + ".params", Json::object());
    if (std::string_view(section) != "optimizer") continue;
    context.overrides.emplace(context.overrides.begin(), "capstan.parameter_groups", Json::array());
  }
}

}  // namespace

ConfigContext config_context(const ConfigArguments& arguments) {
  ConfigContext context;
  context.overrides = arguments.overrides;
  if (arguments.file.empty()) drop_default_params(context);
  context.plugin_paths = arguments.plugin_paths;
  context.lenient = arguments.lenient;
  context.says_autos = !arguments.file.empty();
  context.strict = arguments.strict;
  return context;
}

RunSource source_of(const ConfigArguments& arguments) {
  ConfigContext context = config_context(arguments);
  context.trains_alone = true;
  return {[arguments] { return config_text(arguments); }, context};
}

std::vector<std::string> reading_options(const ConfigArguments& arguments) {
  std::vector<std::string> words;
  for (const std::string& path : arguments.plugin_paths) words.insert(words.end(), {"--plugin-path", path});
  if (arguments.lenient) words.emplace_back("--lenient");
  if (arguments.strict) words.emplace_back("--strict");
  return words;
}

}  // namespace capstan::cli
