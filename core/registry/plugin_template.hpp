#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace capstan {

/// A plugin project to be made: what `capstan plugins new` was asked for.
struct NewPlugin {
  std::string name;              // "acme-signum": the package; "Signum", without the vendor, is its type
  std::string kind;              // one of template_kinds()
  std::filesystem::path folder;  // where the project goes; empty: <working directory>/<name>
  std::string variant;           // "matrix", "c": one of template_variants(kind); empty: the kind's plain template
};

/// The kinds that have a template, as a sentence lists them: "optimizer, scheduler and monitor".
std::string template_kinds(std::string_view conjunction);

/// The variants that a kind has beside its plain template, in order of name: "batch" of observers, "c" of kinds that
/// plain C can write.
std::vector<std::string> template_variants(const std::string& kind);

/// The configuration's type for a package name: "acme-signum" -> "Signum", "acme-my-adam" -> "MyAdam".
std::string type_of_package(const std::string& name);

/// Makes a project from the folder `common` of the templates, which holds what all kinds share, and the folder of the
/// kind, whose files take precedence. A variant is a folder <kind>-<variant> of the files that differ from the kind's:
/// its sources take the place of all sources. A file template-<word> is not copied: its text replaces its name in the
/// other files. Returns the files, relative to the folder. Throws ConfigError for a name, kind or variant that cannot
/// be, RuntimeFault for what the disk refuses.
std::vector<std::filesystem::path> create_plugin_project(const NewPlugin& plugin);

/// The folder of the templates that are installed with this library.
std::filesystem::path installed_template_folder();

}  // namespace capstan
