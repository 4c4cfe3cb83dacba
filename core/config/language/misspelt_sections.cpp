#include "core/config/language/misspelt_sections.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "core/config/language/language.hpp"
#include "core/config/language/old_names.hpp"
#include "core/text/nearest.hpp"
#include "core/text/places.hpp"

namespace capstan {
namespace {

bool is_old_spelling(const std::string& section, const std::string& key) {
  const auto spellings = old_spellings_in(section);
  return std::any_of(spellings.begin(), spellings.end(), [&](const OldSpelling& old) { return old.name == key; });
}

/// True when the object has a key of the section, which shows that the section was meant.
bool resembles(const Json& object, const SchemaNode& section) {
  return std::any_of(object.as_object().begin(), object.as_object().end(), [&](const auto& member) {
    return section.member(member.first) != nullptr || is_old_spelling(section.path, member.first);
  });
}

/// The section that a key of `node` was meant to name, or null: a near name, or the only one that goes on where the key
/// stops ("zero"). What stands in the document already was not meant.
const SchemaNode* meant_section(const SchemaNode& node, const Json& document, const std::string& key,
                                const Json& value) {
  std::vector<std::string> near, longer;
  for (const auto& member : node.members) {
    const std::string& name = member->spec.name;
    if (!member->is_section() || document.find(name) || !resembles(value, *member)) continue;
    near.push_back(name);
    if (name.starts_with(key + "_")) longer.push_back(name);
  }
  if (const auto nearest = nearest_name(key, near)) return node.member(*nearest);
  return longer.size() == 1 ? node.member(longer.front()) : nullptr;
}

void correct(const SchemaNode& node, Json& document, const std::string& path, const std::vector<std::string>& foreign,
             std::vector<UnknownKey>& found) {
  std::vector<std::pair<std::string, std::string>> names;
  for (const auto& [key, value] : document.as_object()) {
    const bool known = is_comment(key) || node.member(key) || is_old_spelling(node.path, key) ||
                       std::find(foreign.begin(), foreign.end(), key) != foreign.end();
    if (!value.is_object() || known) continue;
    const SchemaNode* meant = meant_section(node, document, key, value);
    const bool taken = meant && std::any_of(names.begin(), names.end(),
                                            [&](const auto& one) { return one.second == meant->spec.name; });
    if (meant && !taken) names.emplace_back(key, meant->spec.name);
  }
  for (const auto& [written, meant] : names) {
    for (auto& [key, value] : document.as_object()) {
      if (key != written) continue;
      found.push_back({join_path(path, written), path, written, value, "", {}, meant});
      key = meant;
    }
  }
  for (auto& [key, value] : document.as_object()) {
    const SchemaNode* member = node.member(key);
    if (member && member->is_section() && value.is_object()) correct(*member, value, join_path(path, key), {}, found);
  }
}

}  // namespace

std::vector<UnknownKey> correct_section_names(Json& document, const std::vector<std::string>& foreign) {
  std::vector<UnknownKey> found;
  correct(language(), document, "", foreign, found);
  return found;
}

}  // namespace capstan
