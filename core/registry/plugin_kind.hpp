#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace capstan {

/// A kind of component. The rows of this table are all that manifests, the loader, `plugins new`, `plugins check`, the
/// JSON Schema and the build know of kinds: a new kind is a row in plugin_kind.cpp, its functions in capstan/plugin.h,
/// and a suite in sdk/conformance.
struct PluginKind {
  /// A function of the kind's table, capstan_<name>.
  struct Function {
    std::string_view name;
    std::size_t offset;
  };

  std::string_view name;            // plugins of the kind lie in lib/capstan/plugins/<name>s
  std::vector<Function> functions;  // without which a component is not one of this kind
  std::string_view path;            // the configuration's object with its "type" and "params"; empty when it has none
  bool has_template = false;        // sdk/template/<name>, which `capstan plugins new` copies
  std::string_view page;            // for authors, in docs/

  /// The first of `functions` that a component's table has not; empty when it has all.
  std::string_view missing_function(const void* table) const;
};

/// All kinds.
const std::vector<PluginKind>& plugin_kinds();

/// Null when there is none of that name.
const PluginKind* find_plugin_kind(std::string_view name);

/// The names of all kinds, or of those for which `plugins new` has a template.
std::vector<std::string> plugin_kind_names(bool with_template = false);

}  // namespace capstan
