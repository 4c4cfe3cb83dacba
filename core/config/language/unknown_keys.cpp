#include "core/config/language/unknown_keys.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>

#include "core/config/language/foreign_keys.hpp"
#include "core/config/language/key_advice.hpp"

namespace capstan {
namespace {

// From this many keys without any near name on, the file is another program's and one message is enough.
constexpr std::size_t kForeignKeys = 5;
// More than this are not looked at one by one.
constexpr std::size_t kMostKeys = 200;

std::string listed(const std::vector<const UnknownKey*>& keys) {
  constexpr std::size_t kMost = 10;
  std::string text;
  for (std::size_t i = 0; i < keys.size() && i < kMost; ++i) text += (i == 0 ? "" : ", ") + keys[i]->key;
  return keys.size() > kMost ? text + ", .." : text;
}

struct Found {
  const UnknownKey* key;
  KeyAdvice advice;
};

/// Other programs' options among the top-level keys.
class ForeignKeys {
 public:
  explicit ForeignKeys(const std::vector<Found>& top) {
    for (const Found& found : top) {
      if (names_settings(found.key->key) && found.advice.meant_something) continue;
      const ForeignProgram* program = owner(found.key->key, top);
      if (program) of_[program].push_back(&found);
    }
    // What resembles a key of ours is another program's only where there is more of it.
    for (auto& [program, keys] : of_) {
      const auto resembles = [](const Found* found) { return found->advice.changes_training; };
      if (std::all_of(keys.begin(), keys.end(), resembles)) keys.clear();
    }
  }

  const std::map<const ForeignProgram*, std::vector<const Found*>>& of() const { return of_; }
  bool has(const UnknownKey* key) const {
    return std::any_of(of_.begin(), of_.end(), [&](const auto& entry) {
      return std::any_of(entry.second.begin(), entry.second.end(),
                         [&](const Found* found) { return found->key == key; });
    });
  }

 private:
  /// Among the programs that have the option, picks the one with the most options here.
  static const ForeignProgram* owner(std::string_view key, const std::vector<Found>& top) {
    const ForeignProgram* best = nullptr;
    std::ptrdiff_t most = 0;
    for (const ForeignProgram& program : foreign_programs()) {
      if (!program.has(key)) continue;
      const auto count =
          std::count_if(top.begin(), top.end(), [&](const Found& found) { return program.has(found.key->key); });
      if (count > most) best = &program;
      most = std::max(most, count);
    }
    return best;
  }

  std::map<const ForeignProgram*, std::vector<const Found*>> of_;
};

/// "GPT-NeoX and Megatron-DeepSpeed": a lone option does not tell which of the programs that have it was meant.
std::string programs_with(std::string_view key) {
  std::string text;
  for (const ForeignProgram& program : foreign_programs()) {
    if (program.has(key)) text += (text.empty() ? "" : " and ") + std::string(program.name);
  }
  return text;
}

/// "8 options of GPT-NeoX have no effect in this file: a, b. What acts here: x for a."
std::string foreign_text(const ForeignProgram& program, const std::vector<const Found*>& found) {
  std::vector<const UnknownKey*> keys;
  std::string here;
  for (const Found* one : found) {
    keys.push_back(one->key);
    const std::string_view equivalent = foreign_key_here(one->key->key);
    if (!equivalent.empty()) here += (here.empty() ? "" : ", ") + std::string(equivalent) + " for " + one->key->key;
  }
  if (!here.empty()) here = " What acts here: " + here + ".";
  if (keys.size() == 1)
    return "is an option of " + programs_with(keys.front()->key) + " and has no effect in this file." + here;
  const std::string names = listed(keys);
  return std::to_string(keys.size()) + " options of " + program.name + " have no effect in this file: " + names +
         (names.ends_with("..") ? "" : ".") + here;
}

/// Reports unknown keys, as warnings where the options allow it.
class Reporter {
 public:
  Reporter(const Json& document, const UnknownKeyOptions& options, Problems& problems)
      : document_(document), options_(options), problems_(problems) {}

  void report(const std::vector<Found>& all) {
    std::vector<Found> top;
    std::copy_if(all.begin(), all.end(), std::back_inserter(top),
                 [](const Found& found) { return found.key->section.empty(); });
    const ForeignKeys foreign(top);
    if (whole_file_is_foreign(foreign, top)) {
      report_inner(all);
      return;
    }
    for (const auto& [program, keys] : foreign.of()) {
      if (!keys.empty()) foreign_keys(*program, keys);
    }
    std::vector<const UnknownKey*> strange;
    for (const Found& found : top) {
      if (!foreign.has(found.key) && !found.advice.meant_something) strange.push_back(found.key);
    }
    const bool one_message = strange.size() >= kForeignKeys;
    if (one_message) {
      unknown(strange.front()->path,
              "this looks like a file that another program shares: " + std::to_string(strange.size()) +
                  " top-level keys are not of this language (" + listed(strange) +
                  "). Move them to a file of their own, or begin each with '_'.",
              false);
    }
    for (const Found& found : top) {
      if (foreign.has(found.key) || (one_message && !found.advice.meant_something)) continue;
      unknown(found.key->path, found.advice.text, found.advice.changes_training);
    }
    report_inner(all);
  }

 private:
  /// Keys inside sections. The names that a section has are listed once.
  void report_inner(const std::vector<Found>& all) {
    std::map<std::string, std::string> listed_at;  // the text with the names -> the key that had it
    for (const Found& found : all) {
      if (found.key->section.empty()) continue;
      std::string text = found.advice.text;
      if (found.advice.lists_names) {
        const auto [first, fresh] = listed_at.try_emplace(text, found.key->path);
        if (!fresh) text = "unknown key. " + first->second + " has the names that there are.";
      }
      unknown(found.key->path, text, found.advice.changes_training);
    }
  }

  /// A document without a single key of the language is no configuration, whatever its keys are.
  bool whole_file_is_foreign(const ForeignKeys& foreign, const std::vector<Found>& top) {
    const auto known = [&](const auto& member) {
      return !is_comment(member.first) &&
             std::none_of(top.begin(), top.end(),
                          [&, &name = member.first](const Found& found) { return found.key->key == name; });
    };
    const auto& members = document_.as_object();
    if (std::any_of(members.begin(), members.end(), known)) return false;
    const ForeignProgram* program = nullptr;
    std::size_t most = 1;  // one option alone does not make a program's file
    for (const auto& [one, keys] : foreign.of()) {
      if (keys.size() > most) program = one;
      most = std::max(most, keys.size());
    }
    if (!program) return false;
    std::vector<const UnknownKey*> keys;
    for (const Found& found : top) keys.push_back(found.key);
    problems_.error(keys.front()->path, "this is a file of " + std::string(program->name) + ": " +
                                            "none of its keys is of this language (" + listed(keys) + "). " +
                                            program->remedy);
    return true;
  }

  void foreign_keys(const ForeignProgram& program, const std::vector<const Found*>& keys) {
    const Found& first = *keys.front();
    const bool advised = keys.size() == 1 && first.advice.meant_something;
    const std::string text = advised ? first.advice.text + " It has no effect." : foreign_text(program, keys);
    if (options_.strict) return problems_.error(first.key->path, text);
    problems_.warning(first.key->path, text);
  }

  void unknown(const std::string& path, std::string text, bool stays_error) {
    if (options_.warn && !stays_error) {
      // Before the lines that name folders, where there are such lines.
      text.insert(std::min(text.find('\n'), text.size()), " It has no effect.");
      return problems_.warning(path, text);
    }
    problems_.error(path, text);
  }

  const Json& document_;
  const UnknownKeyOptions& options_;
  Problems& problems_;
};

}  // namespace

void report_unknown_keys(const std::vector<UnknownKey>& keys, const Json& document, const PluginIndex& plugins,
                         const UnknownKeyOptions& options, Problems& problems) {
  if (keys.empty()) return;
  if (keys.size() > kMostKeys) {
    std::vector<const UnknownKey*> all;
    for (const UnknownKey& key : keys) all.push_back(&key);
    problems.error(keys.front().path,
                   "this is not a configuration, or one of another program: " + std::to_string(keys.size()) +
                       " keys are not of this language (" + listed(all) + ").");
    return;
  }
  const std::vector<KeyAdvice> advice = advise(keys, document, plugins);
  std::vector<Found> all;
  for (std::size_t i = 0; i < keys.size(); ++i) all.push_back({&keys[i], advice[i]});
  Reporter(document, options, problems).report(all);
}

}  // namespace capstan
