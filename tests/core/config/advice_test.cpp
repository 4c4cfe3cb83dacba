#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "core/config/language/foreign_keys.hpp"
#include "core/config/language/language.hpp"
#include "core/config/resolve/effective.hpp"
#include "core/errors.hpp"
#include "core/text/relaxed.hpp"
#include "tests/core/config/config_cases.hpp"

namespace capstan::testing {
namespace {

TEST(Advice, TellsTwoPluginsOfOneTypeApart) {
  const auto plugin = [](const std::string& file, const std::string& parameters) {
    return IndexedPlugin{file, PluginManifest::parse(R"(schema = 1
name = "test"
version = "1.0"
[abi]
plugin = "1.0"
[abi.torch]
tier = "none"
[[components]]
kind = "scheduler"
type = "WSDRestart"
[components.params]
)" + parameters,
                                                     file)};
  };
  const std::string cycle = "cycle = { type = \"integer\", default = 9 }\n";
  const PluginIndex plugins = PluginIndex::of(
      {plugin("first.so", cycle), plugin("second.so", cycle + "warmup = { type = \"integer\", default = 1 }\n")});
  ConfigContext context;
  context.check_only = true;
  const ConfigReading reading = read_config(
      {R"({"train_batch_size": 4, "scheduler": {"type": "WSDRestart", "params": {"warmup": 3}}})", "c.json"}, context,
      plugins);
  std::string errors;
  for (const Problem& problem : reading.problems.all()) {
    if (problem.severity == Problem::Severity::kError) errors += problem.path + ": " + problem.message + "\n";
  }
  EXPECT_EQ(errors,
            "scheduler.params.warmup: unknown key: the WSDRestart that is in use has no such parameter, unlike one of "
            "that name in another plugin, which comes later in the search path. 'capstan plugins list' shows both.\n");
}

/// A document with one problem mended as its message says, and the path of what was written.
struct Mended {
  Json document;
  std::string path;
};

std::string parent_of(const std::string& path) {
  const auto dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

std::string below(const std::string& parent, const std::string& key) {
  return parent.empty() ? key : parent + "." + key;
}

Json* find(Json& document, const std::string& path) {
  if (path.empty()) return &document;
  Json* parent = find(document, parent_of(path));
  return parent ? parent->find(path.substr(path.rfind('.') + 1)) : nullptr;
}

/// Takes the value at a path out of the document.
Json take(Json& document, const std::string& path) {
  Json* parent = find(document, parent_of(path));
  const std::string key = path.substr(path.rfind('.') + 1);
  const Json* value = parent ? parent->find(key) : nullptr;
  const Json taken = value ? *value : Json();
  if (value) parent->erase(key);
  return taken;
}

/// Each name after "Did you mean", in the place of the misspelt one.
std::vector<Mended> renamed(const Json& document, const Problem& problem) {
  std::vector<Mended> out;
  const auto begin = problem.message.find("Did you mean ");
  if (begin == std::string::npos) return out;
  const std::string question = problem.message.substr(begin, problem.message.find('?', begin) - begin);
  static const std::regex kName("'([^']+)'( at the top level)?");
  for (std::sregex_iterator at(question.begin(), question.end(), kName), end; at != end; ++at) {
    const std::string name = (*at)[1];
    const bool whole = (*at)[2].matched || name.find('.') != std::string::npos;
    Mended mended{document, whole ? name : below(parent_of(problem.path), name)};
    Json value = take(mended.document, problem.path);
    set_path(mended.document, mended.path, std::move(value));
    out.push_back(std::move(mended));
  }
  return out;
}

/// The JSON at the beginning of a text: `{...}`, or `"key": value`, which makes an object.
std::optional<Json> leading_json(const std::string& text) {
  const bool member = text.starts_with('"');
  std::optional<Json> longest;
  for (std::size_t size = 1; size <= text.size(); ++size) {
    try {
      const std::string piece = text.substr(0, size);
      Json value = Json::parse(member ? "{" + piece + "}" : piece);
      if (value.is_object()) longest = std::move(value);
    } catch (const ConfigError&) {
    }
  }
  return longest;
}

void merge(Json& into, const Json& from) {
  for (const auto& [key, value] : from.as_object()) {
    Json& member = into[key];
    if (value.is_object() && member.is_object()) {
      merge(member, value);
    } else {
      member = value;
    }
  }
}

/// What stands after "Write", in the place that the message names.
std::optional<Mended> written(const Json& document, const Problem& problem) {
  static const std::regex kWrite("[Ww]rite (instead )?(?=[{\"])");
  std::smatch found;
  if (!std::regex_search(problem.message, found, kWrite)) return std::nullopt;
  const auto json = leading_json(found.suffix());
  if (!json) return std::nullopt;
  static const std::regex kPlace(" in ([a-z_0-9.]+)\\.$");
  std::smatch place;
  Mended mended{document, parent_of(problem.path)};
  const bool whole_value = found.suffix().str().starts_with('{') && !found[1].matched;
  take(mended.document, problem.path);
  if (problem.message.find("at the top level") != std::string::npos || found[1].matched ||
      problem.message.find("notation for nesting") != std::string::npos) {
    mended.path = "";
  } else if (std::regex_search(problem.message, place, kPlace)) {
    mended.path = place[1];
  } else if (whole_value) {
    mended.path = problem.path;
  }
  if (!mended.path.empty() && (whole_value || !find(mended.document, mended.path)))
    set_path(mended.document, mended.path, Json::object());
  Json* place_of_it = find(mended.document, mended.path);
  if (!place_of_it->is_object()) return std::nullopt;  // "zero_optimization": true has a message of its own
  merge(*place_of_it, *json);
  if (mended.path.empty() || !whole_value) mended.path = below(mended.path, json->as_object().front().first);
  return mended;
}

/// The document without what the message wants removed or left out.
std::optional<Mended> removed(const Json& document, const Problem& problem) {
  static const std::regex kRemove(
      "([Rr]emove (it|this key)|[Ll]eave (it|the key) out|[Rr]emove the section( '([a-z_]+)')?)[.,;:]");
  std::smatch found;
  if (!std::regex_search(problem.message, found, kRemove)) return std::nullopt;
  Mended mended{document, found[5].matched ? found[5].str() : problem.path};
  take(mended.document, mended.path);
  return mended;
}

/// What the message says to give on the command line: "--set a.b=1 --model gpt:tiny".
std::vector<std::pair<std::string, Json>> settings_in(const std::string& message) {
  static const std::regex kSetting("--set '?([a-z_0-9.]+)=([^ '.,;]+)|--(model|data) ([^ .,;]+)|--(steps) ([0-9]+)");
  const auto path_of = [](const std::string& option) {
    return option == "model" ? "capstan.model" : option == "data" ? "capstan.data.path" : "capstan.run.steps";
  };
  std::vector<std::pair<std::string, Json>> out;
  for (std::sregex_iterator at(message.begin(), message.end(), kSetting), end; at != end; ++at) {
    const std::size_t option = (*at)[1].matched ? 1 : (*at)[3].matched ? 3 : 5;
    const std::string word = (*at)[option + 1];
    Json value(word);
    try {
      value = Json::parse(word);
    } catch (const ConfigError&) {  // a word
    }
    out.emplace_back(option == 1 ? (*at)[1].str() : path_of((*at)[option]), std::move(value));
  }
  return out;
}

/// Errors that follow from advice that was taken by halves: what else a new section needs, slips inside it, the old
/// spelling beside it, and plugins that this installation lacks.
bool is_of_the_rest(const Problem& problem, const Mended& mended) {
  static const std::regex kRest("^is missing; it must be given|Keep only the new one|^no installed ");
  const bool inside = problem.path.starts_with(mended.path + ".") && problem.message.starts_with("unknown key");
  return inside || std::regex_search(problem.message, kRest);
}

bool holds(const Problems& problems, const Problem& wanted) {
  return std::any_of(problems.all().begin(), problems.all().end(), [&](const Problem& problem) {
    return problem.path == wanted.path && problem.message == wanted.message;
  });
}

/// The problem if it is still there, and the errors that were not there before.
std::string faults(const Mended& mended, const Problem& mended_problem, const ConfigCase& one,
                   const ConfigReading& reading) {
  const Problems before = read_config(one.text, one.context, all_components()).problems;
  std::string text;
  for (const Problem& problem : reading.problems.all()) {
    const bool again = problem.path == mended_problem.path && problem.message == mended_problem.message;
    static const std::regex kOfTheKeyItself("^(unknown key|must be|the section must|old spelling)");
    const bool here = problem.path == mended.path && std::regex_search(problem.message, kOfTheKeyItself);
    const bool fresh =
        problem.severity == Problem::Severity::kError && !holds(before, problem) && !is_of_the_rest(problem, mended);
    if (again || here || fresh) text += problem.text("") + "\n";
  }
  return text.empty() ? ""
                      : mended_problem.text(one.text.source) + "\n  mended: " + mended.document.dump() + "\n  " + text;
}

std::string faults(const Mended& mended, const Problem& problem, const ConfigCase& one) {
  return faults(mended, problem, one,
                read_config({mended.document.dump(), "mended", false}, one.context, all_components()));
}

/// The same for what is given on the command line.
std::string faults(const std::vector<std::pair<std::string, Json>>& settings, const Problem& problem,
                   const ConfigCase& one) {
  ConfigContext context = one.context;
  context.overrides = settings;
  return faults({Json::object(), settings.front().first}, problem, one,
                read_config(one.text, context, all_components()));
}

std::vector<ConfigCase> all_configurations() {
  std::vector<ConfigCase> out;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(configs_folder() / "cases")) {
    if (entry.is_regular_file()) out.push_back(ConfigCase::read(entry.path()));
  }
  for (const auto& entry : std::filesystem::directory_iterator(configs_folder() / "wild")) {
    if (entry.path().extension() != ".json") continue;
    ConfigCase wild;
    wild.text = read_config_text(entry.path().string());
    wild.context.check_only = true;
    wild.context.world_known = false;
    out.push_back(std::move(wild));
  }
  return out;
}

TEST(Advice, IsItselfAcceptedWhereAMessageGivesIt) {
  int names = 0, texts = 0, removals = 0, settings = 0;
  for (const ConfigCase& one : all_configurations()) {
    if (one.text.toml || !one.context.overrides.empty()) continue;
    Problems syntax;
    const auto document = parse_relaxed(one.text.text, syntax);
    if (!document) continue;
    const ConfigReading reading = read_config(one.text, one.context, all_components());
    for (const Problem& problem : reading.problems.all()) {
      // A file that is no configuration stays none.
      const auto given = settings_in(problem.message);
      if (!given.empty() && (reading.config || problem.severity == Problem::Severity::kError)) {
        ++settings;
        EXPECT_EQ(faults(given, problem, one), "");
      }
      if (problem.path.empty() || problem.path.find('[') != std::string::npos) continue;
      Json written_so = *document;
      if (!find(written_so, problem.path)) continue;  // its section is misspelt, or another key implies it
      if (problem.message.starts_with("unknown key")) {
        for (const Mended& mended : renamed(*document, problem)) {
          ++names;
          EXPECT_EQ(faults(mended, problem, one), "");
        }
      }
      if (const auto mended = written(*document, problem)) {
        ++texts;
        EXPECT_EQ(faults(*mended, problem, one), "");
      }
      if (const auto mended = removed(*document, problem)) {
        ++removals;
        EXPECT_EQ(faults(*mended, problem, one), "");
      }
    }
  }
  EXPECT_GE(names, 60);
  EXPECT_GE(texts, 30);
  EXPECT_GE(removals, 30);
  EXPECT_GE(settings, 5);
}

TEST(Advice, NamesKeysOfTheLanguageForOtherProgramsOptions) {
  for (const std::string_view path : foreign_equivalents()) {
    const bool argument = path.starts_with("optimizer.params.") || path.starts_with("scheduler.params.");
    EXPECT_TRUE(argument || find_key(path)) << path;
  }
}

}  // namespace
}  // namespace capstan::testing
