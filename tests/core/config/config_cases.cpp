#include "tests/core/config/config_cases.hpp"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace capstan::testing {
namespace {

const char* severity_name(Problem::Severity severity) {
  switch (severity) {
    case Problem::Severity::kError:
      return "error";
    case Problem::Severity::kWarning:
      return "warning";
    case Problem::Severity::kNotice:
      return "notice";
  }
  return "";
}

bool fits(const Expectation& expected, const std::string& text) {
  if (!expected.text.ends_with("..")) return text == expected.text;
  return text.starts_with(expected.text.substr(0, expected.text.size() - 2));
}

void read_setting(const std::string& line, ConfigCase& out) {
  std::istringstream words(line);
  std::string name;
  words >> name;
  if (name == "world") {
    words >> out.context.world_size;
    out.context.world_size_origin = "the case says so";
  } else if (name == "hidden_size") {
    std::int64_t size = 0;
    words >> size;
    out.context.hidden_size = size;
  } else if (name == "lenient") {
    out.context.lenient = true;
  } else if (name == "strict") {
    out.context.strict = true;
  } else if (name == "alone") {
    out.context.trains_alone = true;
  } else if (name == "training") {
    out.context.check_only = false;
  } else if (name == "toml") {
    out.text.toml = true;
  } else if (name == "override" || name == "program") {
    std::string path, value;
    words >> path >> std::ws;
    std::getline(words, value);
    (name == "override" ? out.context.overrides : out.context.program_values).emplace_back(path, Json::parse(value));
  } else {
    throw std::runtime_error("unknown setting: " + line);
  }
}

Expectation read_expectation(const std::string& line) {
  const auto space = line.find(' '), colon = line.find(": ");
  if (space == std::string::npos || colon == std::string::npos) throw std::runtime_error("not an expectation: " + line);
  return {line.substr(0, space), colon > space ? line.substr(space + 1, colon - space - 1) : "",
          line.substr(colon + 2)};
}

const Json* find_path(const Json& values, std::string_view path) {
  const Json* at = &values;
  while (at && !path.empty()) {
    const auto dot = path.find('.');
    at = at->find(path.substr(0, dot));
    path = dot == std::string_view::npos ? "" : path.substr(dot + 1);
  }
  return at;
}

}  // namespace

std::filesystem::path configs_folder() { return std::filesystem::path(CAPSTAN_TEST_SOURCE_DIR) / "tests/configs"; }

std::string read_text(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw std::runtime_error("cannot open " + file.string());
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

const PluginIndex& all_components() {
  static const PluginIndex index = [] {
    std::vector<IndexedPlugin> plugins;
    for (const auto& entry : std::filesystem::directory_iterator(configs_folder() / "plugins")) {
      plugins.push_back(
          {entry.path(), PluginManifest::parse(read_text(entry.path()), entry.path().filename().string())});
    }
    // Bundled layouts are checked against what they say of themselves, to which the build adds the lines before.
    for (const char* folder : {"layouts", "block_sparse"}) {
      const auto file = std::filesystem::path(CAPSTAN_TEST_SOURCE_DIR) / "plugins/attention" / folder / "plugin.toml";
      const std::string text = "abi.plugin = \"1.0\"\nabi.torch.tier = \"none\"\n" + read_text(file);
      plugins.push_back({file, PluginManifest::parse(text, std::string(folder) + ".toml")});
    }
    std::sort(plugins.begin(), plugins.end(), [](const auto& a, const auto& b) { return a.file < b.file; });
    return PluginIndex::of(std::move(plugins));
  }();
  return index;
}

ConfigCase ConfigCase::read(const std::filesystem::path& file) {
  ConfigCase out;
  out.text.source = file.filename().string();
  out.context.check_only = true;
  int part = 0;
  std::istringstream lines(read_text(file));
  for (std::string line; std::getline(lines, line);) {
    if (line == "---") {
      ++part;
    } else if (part == 1) {
      out.text.text += line + "\n";
    } else if (!line.empty() && line[0] != '#') {
      if (part == 0) read_setting(line, out);
      if (part == 2) out.expected.push_back(read_expectation(line));
    }
  }
  if (part != 2) throw std::runtime_error(file.string() + ": a case has three parts, divided by ---");
  return out;
}

std::string differences(const ConfigCase& config_case) {
  const ConfigReading reading = read_config(config_case.text, config_case.context, all_components());
  std::string out;
  std::vector<bool> met(config_case.expected.size(), false);
  const bool notices = std::any_of(config_case.expected.begin(), config_case.expected.end(),
                                   [](const Expectation& one) { return one.what == "notice"; });
  for (const Problem& problem : reading.problems.all()) {
    const std::string name = severity_name(problem.severity);
    bool found = false;
    for (std::size_t i = 0; i < met.size() && !found; ++i) {
      const Expectation& one = config_case.expected[i];
      found = !met[i] && one.what == name && one.path == problem.path && fits(one, problem.message);
      if (found) met[i] = true;
    }
    const bool counts = problem.severity != Problem::Severity::kNotice || notices;
    if (!found && counts) out += "not expected: " + name + " " + problem.path + ": " + problem.message + "\n";
  }
  for (std::size_t i = 0; i < met.size(); ++i) {
    const Expectation& one = config_case.expected[i];
    if (one.what == "value" && reading.config) {
      const Json* value = find_path(reading.config->effective, one.path);
      met[i] = value && one.text != "absent" ? *value == Json::parse(one.text) : !value && one.text == "absent";
      if (!met[i] && value) out += "got: value " + one.path + ": " + value->dump() + "\n";
    }
    if (one.what == "origin" && reading.config) {
      const auto found = reading.config->origins.find(one.path);
      met[i] = found != reading.config->origins.end() && found->second == one.text;
    }
    if (!met[i]) out += "missing: " + one.what + " " + one.path + ": " + one.text + "\n";
  }
  return out;
}

}  // namespace capstan::testing
