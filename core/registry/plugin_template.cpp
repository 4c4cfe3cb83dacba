#include "core/registry/plugin_template.hpp"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "capstan/plugin.h"
#include "core/errors.hpp"
#include "core/registry/plugin_index.hpp"
#include "core/registry/plugin_kind.hpp"
#include "core/text/nearest.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

bool is_package_name(const std::string& name) {
  if (name.empty() || !std::islower(static_cast<unsigned char>(name.front())) || name.back() == '-') return false;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const auto c = static_cast<unsigned char>(name[i]);
    if (c == '-' ? name[i - 1] == '-' : !std::islower(c) && !std::isdigit(c)) return false;
  }
  return true;
}

void check(const NewPlugin& plugin) {
  if (!is_package_name(plugin.name)) {
    throw ConfigError("plugins new: '" + plugin.name +
                      "' cannot be the name of a package. Use small letters, digits and '-', beginning with a letter, "
                      "such as acme-signum.");
  }
  const std::vector<std::string> kinds = plugin_kind_names(true);
  if (std::find(kinds.begin(), kinds.end(), plugin.kind) == kinds.end()) {
    throw ConfigError("plugins new: there is no template of kind '" + plugin.kind + "', only of " +
                      template_kinds("and") + "." + suggestion(plugin.kind, kinds));
  }
  if (plugin.variant.empty()) return;
  const std::vector<std::string> variants = template_variants(plugin.kind);
  if (std::find(variants.begin(), variants.end(), plugin.variant) != variants.end()) return;
  std::string all;
  for (const std::string& variant : variants) all += (all.empty() ? "" : ", ") + variant;
  throw ConfigError("plugins new: kind '" + plugin.kind + "' has no template '" + plugin.variant + "', " +
                    (all.empty() ? "only its plain one." : "only its plain one and: " + all + ".") +
                    suggestion(plugin.variant, variants));
}

using Words = std::vector<std::pair<std::string, std::string>>;  // a word of the templates -> the project's

std::string replaced(std::string text, const Words& words) {
  for (const auto& [from, to] : words) {
    for (auto at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
      text.replace(at, from.size(), to);
    }
  }
  return text;
}

using FilesByName = std::map<fs::path, fs::path>;  // the name in the project -> the template's file

FilesByName files_below(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    throw RuntimeFault(folder.string() + ": the template is not there. It is installed with the SDK's headers.");
  }
  FilesByName files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.emplace(entry.path().lexically_relative(folder), entry.path());
  }
  return files;
}

bool is_source(const fs::path& name) {
  const std::string extension = name.extension().string();
  return extension == ".cpp" || extension == ".hpp" || extension == ".c" || extension == ".h";
}

FilesByName template_files(const NewPlugin& plugin) {
  const fs::path templates = installed_template_folder();
  FilesByName files = files_below(templates / plugin.kind);
  if (!plugin.variant.empty()) {
    std::erase_if(files, [](const auto& file) { return is_source(file.first); });
    FilesByName own = files_below(templates / (plugin.kind + "-" + plugin.variant));
    own.merge(files);
    files = std::move(own);
  }
  files.merge(files_below(templates / "common"));
  return files;
}

std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in) throw RuntimeFault(file.string() + ": cannot be read.");
  return text;
}

/// Takes the files template-<word> out of `files`: each holds what replaces its name in the others.
Words take_words(FilesByName& files) {
  Words words;
  std::erase_if(files, [&](const auto& file) {
    const std::string name = file.first.string();
    if (!name.starts_with("template-")) return false;
    std::string text = text_of(file.second);
    while (text.ends_with('\n')) text.pop_back();
    words.emplace_back(name, std::move(text));
    return true;
  });
  return words;
}

Words names_of(const NewPlugin& plugin) {
  std::string identifier = plugin.name;
  std::replace(identifier.begin(), identifier.end(), '-', '_');
  return {{"template-plugin", plugin.name},
          {"template_plugin", identifier},
          {"TemplatePlugin", type_of_package(plugin.name)},
          {"template-vendor", plugin.name.substr(0, plugin.name.find('-'))},
          {"template-kind", plugin.kind},
          {"template-abi", std::to_string(CAPSTAN_ABI_MAJOR) + "." + std::to_string(CAPSTAN_ABI_MINOR)}};
}

void write_file(const fs::path& to, const std::string& text) {
  fs::create_directories(to.parent_path());
  std::ofstream out(to, std::ios::binary);
  out << text;
  out.close();
  if (!out) throw RuntimeFault(to.string() + ": cannot be written.");
}

}  // namespace

std::string template_kinds(std::string_view conjunction) {
  const std::vector<std::string> names = plugin_kind_names(true);
  std::string text = names.front();
  for (std::size_t i = 1; i < names.size(); ++i)
    text += (i + 1 == names.size() ? " " + std::string(conjunction) + " " : ", ") + names[i];
  return text;
}

std::vector<std::string> template_variants(const std::string& kind) {
  std::vector<std::string> variants;
  std::error_code error;
  for (fs::directory_iterator it(installed_template_folder(), error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with(kind + "-")) variants.push_back(name.substr(kind.size() + 1));
  }
  std::sort(variants.begin(), variants.end());
  return variants;
}

std::string type_of_package(const std::string& name) {
  const auto vendor_end = name.find('-');
  std::string type;
  bool upper = true;
  for (const char c : vendor_end == std::string::npos ? name : name.substr(vendor_end + 1)) {
    if (c == '-') {
      upper = true;
    } else {
      type += upper ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
      upper = false;
    }
  }
  // A type that began with a digit would not be a class's name.
  return std::isdigit(static_cast<unsigned char>(type.front())) ? "Plugin" + type : type;
}

std::vector<fs::path> create_plugin_project(const NewPlugin& plugin) {
  check(plugin);
  const fs::path folder = plugin.folder.empty() ? fs::path(plugin.name) : plugin.folder;
  if (fs::exists(folder) && !(fs::is_directory(folder) && fs::is_empty(folder))) {
    throw RuntimeFault(folder.string() + ": already exists. Choose another name or folder.");
  }
  std::set<fs::path> made;
  try {
    FilesByName files = template_files(plugin);
    Words words = take_words(files);
    for (auto& name : names_of(plugin)) words.push_back(std::move(name));
    for (const auto& [name, source] : files) {
      const fs::path to = replaced(name.string(), words);
      write_file(folder / to, replaced(text_of(source), words));
      made.insert(to);
    }
  } catch (const fs::filesystem_error& error) {
    throw RuntimeFault(error.path1().string() + ": " + error.code().message() + ".");
  }
  return {made.begin(), made.end()};
}

fs::path installed_template_folder() {
  // <prefix>/lib/capstan/plugins -> <prefix>/share/capstan/template
  return installed_plugin_folder().parent_path().parent_path().parent_path() / "share" / "capstan" / "template";
}

}  // namespace capstan
