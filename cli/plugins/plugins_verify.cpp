#include "cli/plugins/plugins_verify.hpp"

#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <vector>

#include "cli/program.hpp"
#include "cli/scratch_folder.hpp"
#include "core/output_path.hpp"
#include "core/process/child.hpp"
#include "core/registry/plugin_index.hpp"
#include "sdk/conformance/component_under_test.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;

std::vector<ComponentManifest> components_that_train(const std::string& file) {
  std::vector<ComponentManifest> found;
  for (const ComponentManifest& component : read_plugin(file).manifest.components) {
    const bool trains = component.kind == "optimizer" || component.kind == "scheduler" || component.kind == "model";
    if (trains && component.runs_on("cpu")) found.push_back(component);
  }
  return found;
}

/// Words of a small vocabulary in an order without a period.
std::string made_text() {
  constexpr const char* kWords[] = {"the", "drum", "turns", "and", "hauls", "a", "rope", "of", "hemp", "upon", "deck"};
  std::string text;
  std::uint32_t state = 1;
  for (int word = 0; word < 4000; ++word) {
    state = state * 1664525u + 1013904223u;
    text += std::string(kWords[(state >> 16) % std::size(kWords)]) + (word % 12 == 11 ? "\n" : " ");
  }
  return text;
}

Json section_of(const ComponentManifest& component, const Json& params) {
  Json section = Json::object(), values = Json::object();
  const Json possible = conformance::default_params(component);
  for (const KeySpec& known : component.params) {
    if (const Json* given = params.find(known.name)) {
      values[known.name] = *given;
    } else if (known.required && !known.fallback) {
      values[known.name] = possible.at(known.name);
    }
  }
  section["type"] = component.type;
  section["params"] = values;
  return section;
}

Json optimizer(const char* type) {
  Json section = Json::object();
  section["type"] = type;
  section["params"] = Json::object();
  section["params"]["lr"] = 1e-3;
  return section;
}

Json small_model() {
  return Json::parse(R"({"type": "gpt", "params": {"layers": 2, "d": 32, "heads": 2, "seq": 32}})");
}

Json config_for(const ComponentManifest& component, const Json& params, const fs::path& text) {
  Json config = Json::object(), capstan = Json::object();
  const Json section = section_of(component, params);
  config["train_batch_size"] = 8;
  config["optimizer"] = component.kind == "optimizer" ? section : optimizer("AdamW");
  if (component.kind == "scheduler") config["scheduler"] = section;
  capstan["model"] = component.kind == "model" ? section : small_model();
  capstan["data"] = Json::object();
  capstan["data"]["path"] = text.string();
  config["capstan"] = capstan;
  return config;
}

/// Runs a program with this one's input and output. Returns its exit code.
int run(const std::vector<std::string>& words) {
  sigset_t mask;
  sigprocmask(SIG_SETMASK, nullptr, &mask);
  const pid_t process = start_child({.words = words, .mask = mask, .caller = "plugins verify: "});
  int status = 0;
  while (waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  return code_of(status);
}

/// "badges.html" for one component, "badges-Lion.html" where there are several.
std::string page_of(const std::string& page, const ComponentManifest& component, bool alone) {
  if (alone) return page;
  const fs::path path = page;
  return (path.parent_path() / (path.stem().string() + "-" + component.type + path.extension().string())).string();
}

}  // namespace

bool can_be_verified(const std::string& file) { return !components_that_train(file).empty(); }

int verify_plugin(const PluginsCheckArguments& arguments, const Json& params) {
  const std::vector<ComponentManifest> components = components_that_train(arguments.file);
  const ScratchFolder scratch("capstan-check-");
  replace_file(scratch.path() / "text.txt", made_text());
  int code = 0;
  for (const ComponentManifest& component : components) {
    const fs::path config = scratch.path() / (component.type + ".json");
    replace_file(config, config_for(component, params, scratch.path() / "text.txt").dump(2) + "\n");
    print("\n" + component.kind + " '" + component.type + "':\n");
    std::vector<std::string> words = {
        (install_prefix() / "bin/capstan").string(),        "verify", "--config", config.string(), "--plugin-path",
        fs::absolute(arguments.file).parent_path().string()};
    if (arguments.seed) words.insert(words.end(), {"--seed", std::to_string(*arguments.seed)});
    if (!arguments.html.empty()) {
      words.insert(words.end(), {"--html", page_of(arguments.html, component, components.size() == 1)});
    }
    const int own = run(words);
    if (code == 0) code = own;
  }
  return code;
}

}  // namespace capstan::cli
