#include "core/registry/plugin_index.hpp"

#include <dlfcn.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "core/errors.hpp"
#include "core/registry/file_trust.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

bool provides(const ComponentManifest& component, std::string_view kind, std::string_view type,
              std::string_view device) {
  return component.kind == kind && component.runs_on(device) && component.answers_to(type);
}

std::vector<std::string> split_path_list(const char* list) {
  std::vector<std::string> folders;
  std::string_view rest = list ? list : "";
  while (!rest.empty()) {
    const auto colon = std::min(rest.find(':'), rest.size());
    // An empty entry means the working directory elsewhere; never here.
    if (colon > 0) folders.emplace_back(rest.substr(0, colon));
    rest.remove_prefix(std::min(colon + 1, rest.size()));
  }
  return folders;
}

bool has_plugin_name(const fs::path& file) {
  const std::string name = file.filename().string();
  return name.starts_with("libcapstan_") && name.ends_with(".so");
}

IndexedPlugin read_manifest(const fs::path& file) {
  std::string bytes = read_elf_section(file, ".capstan.manifest");
  while (!bytes.empty() && bytes.back() == '\0') bytes.pop_back();
  return {file, PluginManifest::parse(bytes, file.string())};
}

}  // namespace

/// Fills an index. Order is that of the search path, then of file names, so that the same tree gives the same index.
class PluginIndex::Scanner {
 public:
  void add(const fs::path& folder, const std::string& origin) {
    SearchedFolder searched{folder, origin, 0, ""};
    struct stat status {};
    if (::stat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
      searched.problem = "does not exist";
    } else if (!seen_.insert({status.st_dev, status.st_ino}).second) {
      return;  // named twice
    } else if (!trusted(folder, check_trust(folder, "folder"))) {
      searched.problem = "refused";
    } else {
      searched.plugins = add_files(folder, true);
    }
    contents_->folders.push_back(std::move(searched));
  }

  PluginIndex finish() {
    std::map<fs::path, std::vector<std::string>> hidden;  // by the folder of what hides them
    for (const IndexedPlugin& plugin : contents_->plugins) {
      for (const ComponentManifest& component : plugin.manifest.components) {
        const ComponentRef winner = contents_->find(component.kind, component.type, component.device);
        if (winner.component == &component) {
          warn_of_model_types(plugin, component);
          continue;
        }
        contents_->shadowed.emplace_back(ComponentRef{&plugin, &component}, winner);
        hidden[winner.plugin->file.parent_path()].push_back(
            plugin.file.string() + ": its " + component.kind + " '" + component.type + "' is hidden by " +
            winner.plugin->file.string() + ", which comes first in the search path.");
      }
    }
    // A folder that stands in for another one hides many at once.
    for (const auto& [folder, sentences] : hidden) {
      const std::size_t more = sentences.size() - 1;
      contents_->warnings.push_back(sentences.front() +
                                    (more == 0 ? ""
                                               : " " + folder.string() + " hides " + std::to_string(more) +
                                                     " more; 'capstan plugins list' shows them."));
    }
    return PluginIndex(std::move(contents_));
  }

 private:
  /// Names the model types of config.json that two models take, of which the first in the search path gets them.
  void warn_of_model_types(const IndexedPlugin& plugin, const ComponentManifest& component) const {
    for (const std::string& type : component.model_types) {
      const ComponentRef winner = contents_->find_model_type(type);
      if (winner.component == &component) continue;
      contents_->warnings.push_back(plugin.file.string() + ": its model '" + component.type + "' and the model '" +
                                    winner.component->type + "' of " + winner.plugin->file.string() +
                                    " both take the model type '" + type + "'. Folders and files of that type go to '" +
                                    winner.component->type + "', which comes first in the search path.");
    }
  }

  bool trusted(const fs::path& path, const Trust& trust) {
    // A folder stands on the way to many files.
    if (!trust.warning.empty() && warned_.insert(trust.warning).second) contents_->warnings.push_back(trust.warning);
    if (!trust.refusal.empty()) contents_->rejected.push_back({path, trust.refusal});
    return trust.refusal.empty();
  }

  int add_files(const fs::path& folder, bool descend) {
    std::error_code error;
    std::vector<fs::path> files, folders;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      if (has_plugin_name(it->path())) {
        files.push_back(it->path());
      } else if (descend && it->is_directory(error)) {
        folders.push_back(it->path());
      }
    }
    std::sort(files.begin(), files.end());
    std::sort(folders.begin(), folders.end());
    int count = 0;
    for (const auto& file : files) count += add_file(file);
    for (const auto& inner : folders) {
      if (trusted(inner, check_trust(inner, "folder"))) count += add_files(inner, false);
    }
    return count;
  }

  int add_file(const fs::path& file) {
    if (!trusted(file, check_trust_inside(file))) return 0;
    try {
      contents_->plugins.push_back(read_manifest(file));
      for (const std::string& warning : contents_->plugins.back().manifest.warnings)
        contents_->warnings.push_back(file.string() + ": " + warning);
      return 1;
    } catch (const PluginError& problem) {
      contents_->rejected.push_back({file, problem.what()});
      return 0;
    }
  }

  std::shared_ptr<Contents> contents_ = std::make_shared<Contents>();
  std::set<std::pair<dev_t, ino_t>> seen_;
  std::set<std::string> warned_;
};

PluginIndex::PluginIndex() : contents_(std::make_shared<Contents>()) {}

PluginIndex PluginIndex::of(std::vector<IndexedPlugin> plugins) {
  auto contents = std::make_shared<Contents>();
  contents->plugins = std::move(plugins);
  return PluginIndex(std::move(contents));
}

PluginIndex PluginIndex::scan(const std::vector<std::pair<fs::path, std::string>>& folders_and_origins) {
  Scanner scanner;
  for (const auto& [folder, origin] : folders_and_origins) scanner.add(folder, origin);
  for (const auto& folder : split_path_list(std::getenv("CAPSTAN_PLUGIN_PATH"))) {
    scanner.add(folder, "CAPSTAN_PLUGIN_PATH");
  }
  std::error_code error;
  if (const fs::path own = user_plugin_folder(); !own.empty() && fs::is_directory(own, error)) scanner.add(own, "user");
  scanner.add(installed_plugin_folder(), "installed");
  return scanner.finish();
}

PluginIndex PluginIndex::scan_only(const fs::path& folder) {
  Scanner scanner;
  scanner.add(folder, "alone");
  return scanner.finish();
}

ComponentRef PluginIndex::Contents::find(std::string_view kind, std::string_view type, std::string_view device) const {
  for (const IndexedPlugin& plugin : plugins) {
    for (const ComponentManifest& component : plugin.manifest.components) {
      if (provides(component, kind, type, device)) return {&plugin, &component};
    }
  }
  return {};
}

ComponentRef PluginIndex::find(std::string_view kind, std::string_view type, std::string_view device) const {
  return contents_->find(kind, type, device);
}

ComponentRef PluginIndex::Contents::find_model_type(std::string_view model_type) const {
  for (const IndexedPlugin& plugin : plugins) {
    for (const ComponentManifest& component : plugin.manifest.components) {
      if (!component.takes_model_type(model_type)) continue;
      // A model that another of its type hides cannot be built.
      const ComponentRef winner = find(component.kind, component.type, component.device);
      if (winner.component == &component) return winner;
    }
  }
  return {};
}

ComponentRef PluginIndex::find_model_type(std::string_view model_type) const {
  return contents_->find_model_type(model_type);
}

std::vector<std::string> PluginIndex::model_types() const {
  std::set<std::string> types;
  for (const IndexedPlugin& plugin : plugins()) {
    for (const ComponentManifest& component : plugin.manifest.components) {
      for (const std::string& type : component.model_types) {
        if (find_model_type(type)) types.insert(type);
      }
    }
  }
  return {types.begin(), types.end()};
}

fs::path installed_plugin_folder() {
  Dl_info here{};
  if (::dladdr(reinterpret_cast<const void*>(&installed_plugin_folder), &here) == 0 || !here.dli_fname) return {};
  std::error_code error;
  const fs::path library = fs::canonical(here.dli_fname, error);
  return error ? fs::path() : library.parent_path() / "capstan" / "plugins";
}

fs::path emulated_device_folder() { return installed_plugin_folder().parent_path() / "emulated"; }

fs::path user_plugin_folder() {
  const auto value = [](const char* name) {
    const char* text = std::getenv(name);
    return fs::path(text ? text : "");
  };
  // What is not absolute is to be ignored, says the XDG specification: it would depend on the working directory.
  if (const fs::path data = value("XDG_DATA_HOME"); data.is_absolute()) return data / "capstan" / "plugins";
  const fs::path home = value("HOME");
  return home.is_absolute() ? home / ".local" / "share" / "capstan" / "plugins" : fs::path();
}

void require_plugin_name(const IndexedPlugin& plugin) {
  if (has_plugin_name(plugin.file)) return;
  throw PluginError(plugin.file.string() + ": a plugin's file is found by a name such as libcapstan_" +
                    plugin.manifest.name + ".so. Rename it.");
}

IndexedPlugin read_plugin(const fs::path& file) {
  std::error_code error;
  const fs::path absolute = fs::absolute(file, error);
  for (const auto& [path, what] : {std::pair(absolute, "file"), std::pair(absolute.parent_path(), "folder")}) {
    if (const Trust trust = check_trust(path, what); !trust.refusal.empty()) throw PluginError(trust.refusal);
  }
  return read_manifest(file);
}

}  // namespace capstan
