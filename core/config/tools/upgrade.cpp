#include "core/config/tools/upgrade.hpp"

#include <algorithm>
#include <string_view>

#include "core/config/language/old_names.hpp"
#include "core/config/tools/member_span.hpp"
#include "core/errors.hpp"
#include "core/text/numbers.hpp"
#include "core/text/relaxed.hpp"
#include "core/text/yaml.hpp"

namespace capstan {
namespace {

std::string parent_of(const std::string& path) {
  const auto dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

std::string last_of(const std::string& path) { return path.substr(path.rfind('.') + 1); }

bool blank(std::string_view text) { return text.find_first_not_of(" \t\r") == std::string_view::npos; }

/// Removes a member with its comma, and its lines where nothing else stands on them.
void remove_member(std::string& text, const MemberSpan& span) {
  std::size_t begin = span.key_begin, end = span.value_end;
  const auto next = text.find_first_not_of(" \t\r\n", end);
  if (next != std::string::npos && text[next] == ',') {
    end = next + 1;
  } else if (const auto previous = text.find_last_not_of(" \t\r\n", begin - 1); text[previous] == ',') {
    begin = previous;
  }
  const auto line_begin = text.rfind('\n', begin) == std::string::npos ? 0 : text.rfind('\n', begin) + 1;
  const auto line_end = text.find('\n', end);
  const bool own_line = text[begin] != ',' && line_end != std::string::npos &&
                        blank(std::string_view(text).substr(line_begin, begin - line_begin)) &&
                        blank(std::string_view(text).substr(end, line_end - end));
  if (own_line) {
    begin = line_begin;
    end = line_end + 1;
  }
  text.erase(begin, end - begin);
}

/// The blanks in front of the first member of the object that opens at `object`, or of the object's own line and more.
std::string member_indent(const std::string& text, std::size_t object) {
  const std::size_t first = skip_blanks_and_comments(text, object + 1);
  const auto line = text.rfind('\n', first);
  if (line == std::string::npos || line < object) return " ";
  const std::string indent = text.substr(line, first - line);
  const bool only_blanks = indent.find_first_not_of(" \t\r\n") == std::string::npos;
  return only_blanks && text[first] != '}' ? indent : "\n  ";
}

/// Puts a member at the front of an object.
void insert_member(std::string& text, std::size_t object, const std::string& member) {
  const std::string indent = member_indent(text, object);
  const bool empty = text[skip_blanks_and_comments(text, object + 1)] == '}';
  text.insert(object + 1, indent + member + (empty ? "" : ","));
}

/// Makes sure that a top-level section exists and gives the offset of its bracket.
std::size_t section_bracket(std::string& text, const std::string& section) {
  const std::size_t root = skip_blanks_and_comments(text, text.starts_with("\xEF\xBB\xBF") ? 3 : 0);
  if (section.empty()) return root;
  if (!find_member(text, section)) insert_member(text, root, "\"" + section + "\": {}");
  return find_member(text, section)->value_begin;
}

bool apply(std::string& text, const Replacement& change) {
  const auto span = find_member(text, change.old_path);
  if (!span) return false;
  const std::string old_value = text.substr(span->value_begin, span->value_end - span->value_begin);
  const std::string value = change.value ? change.value->dump() : old_value;
  if (change.new_path.empty()) {
    remove_member(text, *span);
  } else if (parent_of(change.new_path) == parent_of(change.old_path)) {
    text.replace(span->value_begin, span->value_end - span->value_begin, value);
    text.replace(span->key_begin, span->key_end - span->key_begin, "\"" + last_of(change.new_path) + "\"");
  } else {
    remove_member(text, *span);
    insert_member(text, section_bracket(text, parent_of(change.new_path)),
                  "\"" + last_of(change.new_path) + "\": " + value);
  }
  return true;
}

std::string errors_of(const Problems& problems, const std::string& source) {
  std::string text;
  for (const Problem& problem : problems.all()) {
    if (problem.severity == Problem::Severity::kError) text += (text.empty() ? "" : "\n") + problem.text(source);
  }
  return text;
}

std::vector<Replacement> replacements(const ConfigText& text, const std::string& current) {
  Problems problems;
  auto document = parse_relaxed(current, problems);
  std::vector<Replacement> found;
  if (document) found = replace_old_names(*document, problems);
  if (const std::string errors = errors_of(problems, text.source); !errors.empty()) throw ConfigError(errors);
  return found;
}

/// Writes commas, quotes and words as JSON has them, and lists the counts among the changes.
void write_as_json(Upgraded& out) {
  Problems problems;
  const auto strict = make_strict(out.text, problems);
  if (!strict) return;
  std::size_t added = 0, removed = 0, spelt = 0;
  for (auto fix = strict->fixes.rbegin(); fix != strict->fixes.rend(); ++fix) {
    out.text.replace(fix->offset, fix->size, fix->text);
    ++(fix->size == 0 ? added : fix->text.empty() ? removed : spelt);
  }
  if (added > 0) out.changes.push_back(counted(static_cast<std::int64_t>(added), "missing comma") + " added");
  if (removed > 0)
    out.changes.push_back(counted(static_cast<std::int64_t>(removed), "comma") + " before a closing bracket removed");
  if (spelt > 0)
    out.changes.push_back(counted(static_cast<std::int64_t>(spelt), "value") +
                          " spelt as in JSON: quotes, null, true, false");
}

}  // namespace

Upgraded upgrade_text(const ConfigText& text) {
  if (text.toml) throw ConfigError(text.source + ": upgrade reads JSON; TOML files never had old spellings.");
  if (looks_like_yaml(text.text)) throw ConfigError(text.source + ": upgrade reads JSON, and this is YAML.");
  Upgraded out{text.text, {}};
  // One change at a time: each may move what the others speak of. The old names are finite, so this ends.
  for (auto found = replacements(text, out.text); !found.empty(); found = replacements(text, out.text)) {
    const auto applied =
        std::find_if(found.begin(), found.end(), [&](const Replacement& change) { return apply(out.text, change); });
    if (applied == found.end()) break;
    out.changes.push_back(applied->old_path + (applied->new_path.empty() ? " removed" : " -> " + applied->new_path));
  }
  write_as_json(out);
  return out;
}

}  // namespace capstan
