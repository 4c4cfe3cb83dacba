#include "core/config/resolve/program_values.hpp"

#include "core/config/resolve/effective.hpp"
#include "core/schema/value.hpp"

namespace capstan {
namespace {

const Json* find_path(const Json& document, std::string_view path) {
  const Json* at = &document;
  for (auto dot = path.find('.'); at && dot != std::string_view::npos; dot = path.find('.')) {
    at = at->find(path.substr(0, dot));
    path.remove_prefix(dot + 1);
  }
  return at ? at->find(path) : nullptr;
}

/// True for an argument of a component that the file does not choose: there is nothing to give it to.
bool has_no_place(const Json& document, std::string_view path) {
  const std::string_view section = path.substr(0, path.find('.'));
  return section != path && (section == "optimizer" || section == "scheduler") && !document.find(section);
}

/// True when the file leaves the value to the program.
bool left_open(const Json& document, std::string_view path) {
  const Json* written = find_path(document, path);
  return !written || written->is_null() || (written->is_string() && written->as_string() == "auto");
}

}  // namespace

void apply_program_values(Json& document, const ConfigContext& context, Problems& problems) {
  std::string first, disagreements;
  for (const auto& [path, value] : context.program_values) {
    if (has_no_place(document, path)) continue;
    if (left_open(document, path)) {
      set_path(document, path, value);
      continue;
    }
    const Json& written = *find_path(document, path);
    if (written == value) continue;
    if (first.empty()) first = path;
    disagreements += (disagreements.empty() ? "" : "; ") + path + " is " + shown(written) + " in the file and " +
                     shown(value) + " in the program";
  }
  if (!first.empty()) {
    problems.error(first, "the file and the program disagree: " + disagreements +
                              ". Write \"auto\" in the file for what the program decides.");
  }
}

void mark_program_values(const ConfigContext& context, const Json& as_written,
                         std::map<std::string, std::string>& origins) {
  for (const auto& [path, value] : context.program_values) {
    const auto found = origins.find(path);
    if (found != origins.end() && found->second == "file" && left_open(as_written, path)) found->second = "program";
  }
}

}  // namespace capstan
