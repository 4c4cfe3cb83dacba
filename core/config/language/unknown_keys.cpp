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
// With this many options of one program a file is recognised as its, and may have more that are not listed.
constexpr std::size_t kOptionsOfAProgram = 5;
// More than this are not looked at one by one.
constexpr std::size_t kMostKeys = 200;

std::string listed(const std::vector<const UnknownKey*>& keys) {
  constexpr std::size_t kMost = 10;
  std::string text;
  for (std::size_t i = 0; i < keys.size() && i < kMost; ++i) text += (i == 0 ? "" : ", ") + keys[i]->key;
  return keys.size() > kMost ? text + ", .." : text;
}

constexpr const char* kWithoutEffect = " This key itself has no effect.";

struct Found {
  const UnknownKey* key;
  KeyAdvice advice;
};

std::vector<const UnknownKey*> keys_of(const std::vector<Found>& found) {
  std::vector<const UnknownKey*> keys(found.size());
  std::transform(found.begin(), found.end(), keys.begin(), [](const Found& one) { return one.key; });
  return keys;
}

/// True for a name as programs give their options: words of small letters.
bool is_option_name(std::string_view key) {
  return !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

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
    adopt(top);
  }

  const std::map<const ForeignProgram*, std::vector<const Found*>>& of() const { return of_; }
  /// Keys that no list has, in a file of a program that is recognised by others: taken as its options.
  const ForeignProgram* adopter() const { return adopter_; }
  const std::vector<const UnknownKey*>& adopted() const { return adopted_; }
  bool has(const UnknownKey* key) const {
    if (std::find(adopted_.begin(), adopted_.end(), key) != adopted_.end()) return true;
    return std::any_of(of_.begin(), of_.end(), [&](const auto& entry) {
      return std::any_of(entry.second.begin(), entry.second.end(),
                         [&](const Found* found) { return found->key == key; });
    });
  }

 private:
  void adopt(const std::vector<Found>& top) {
    std::size_t most = 0;
    for (const auto& [program, keys] : of_) {
      if (keys.size() > most) adopter_ = program;
      most = std::max(most, keys.size());
    }
    if (most < kOptionsOfAProgram) adopter_ = nullptr;
    for (const Found& found : top) {
      if (!adopter_ || has(found.key) || found.advice.meant_something || !is_option_name(found.key->key)) continue;
      adopted_.push_back(found.key);
    }
  }

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
  const ForeignProgram* adopter_ = nullptr;
  std::vector<const UnknownKey*> adopted_;
};

/// "GPT-NeoX and Megatron-DeepSpeed": a lone option does not tell which of the programs that have it was meant.
std::string programs_with(std::string_view key) {
  std::string text;
  for (const ForeignProgram& program : foreign_programs()) {
    if (program.has(key)) text += (text.empty() ? "" : " and ") + std::string(program.name);
  }
  return text;
}

/// " Taken as its options too: 2 unknown keys, a, b."
std::string taken_as_options(const std::vector<const UnknownKey*>& keys) {
  if (keys.empty()) return "";
  const std::string names = listed(keys);
  return " Taken as its options too: " + std::to_string(keys.size()) + " unknown key" + (keys.size() > 1 ? "s" : "") +
         ", " + names + (names.ends_with("..") ? "" : ".");
}

/// "8 options of GPT-NeoX have no effect in this file: a, b. What acts here: x for a."
/// `more`: keys that no list has and that are taken as the program's too.
std::string foreign_text(const ForeignProgram& program, const std::vector<const Found*>& found,
                         const std::vector<const UnknownKey*>& more) {
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
         (names.ends_with("..") ? "" : ".") + here + taken_as_options(more);
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
      if (keys.empty()) continue;
      foreign_keys(*program, keys, program == foreign.adopter() ? foreign.adopted() : std::vector<const UnknownKey*>{});
    }
    std::vector<const UnknownKey*> strange;
    for (const Found& found : top) {
      if (!foreign.has(found.key) && !found.advice.meant_something) strange.push_back(found.key);
    }
    if (nothing_is_known(top)) return report_inner(all);
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
      unknown(found, found.advice.text);
    }
    report_inner(all);
  }

 private:
  /// Keys inside sections. Those of one section of which there is nothing to say but what the section has are one
  /// message.
  void report_inner(const std::vector<Found>& all) {
    for (const Found& found : all) {
      if (found.key->section.empty()) continue;
      if (!found.advice.lists_names) {
        unknown(found, found.advice.text);
        continue;
      }
      std::vector<const UnknownKey*> alike;
      for (const Found& other : all) {
        if (other.key->section == found.key->section && other.advice.text == found.advice.text)
          alike.push_back(other.key);
      }
      if (alike.front() != found.key) continue;
      alike.erase(alike.begin());
      std::string text = found.advice.text;
      if (!alike.empty()) {
        const std::string names = listed(alike);
        const std::size_t end = text.find('.');
        text.replace(end, names.ends_with("..") ? 1 : 0, (alike.size() > 1 ? ", as are " : ", as is ") + names);
      }
      unknown(found, text);
    }
  }

  /// True when no key of the document, comments aside, is of the language.
  bool has_no_key_of_the_language(const std::vector<Found>& top) const {
    const auto& members = document_.as_object();
    return std::none_of(members.begin(), members.end(), [&](const auto& member) {
      return !is_comment(member.first) &&
             std::none_of(top.begin(), top.end(),
                          [&, &name = member.first](const Found& found) { return found.key->key == name; });
    });
  }

  /// Says of a document with several keys, none of which is of the language or resembles one, that it is no
  /// configuration.
  bool nothing_is_known(const std::vector<Found>& top) {
    const auto meant = [](const Found& found) { return found.advice.meant_something; };
    if (top.size() < 2 || !has_no_key_of_the_language(top) || std::any_of(top.begin(), top.end(), meant)) return false;
    const std::vector<const UnknownKey*> keys = keys_of(top);
    const std::string names = listed(keys);
    problems_.error(keys.front()->path, "this is not a configuration of DeepSpeed: none of its " +
                                            std::to_string(keys.size()) + " keys is of this language (" + names +
                                            "). Give the file that holds keys such as train_batch_size, optimizer and "
                                            "zero_optimization.");
    return true;
  }

  /// A document without a single key of the language is no configuration, whatever its keys are.
  bool whole_file_is_foreign(const ForeignKeys& foreign, const std::vector<Found>& top) {
    if (!has_no_key_of_the_language(top)) return false;
    const ForeignProgram* program = nullptr;
    std::size_t most = 1;  // one option alone does not make a program's file
    for (const auto& [one, keys] : foreign.of()) {
      if (keys.size() > most) program = one;
      most = std::max(most, keys.size());
    }
    if (!program) return false;
    const std::vector<const UnknownKey*> keys = keys_of(top);
    problems_.error(keys.front()->path, "this is a file of " + std::string(program->name) + ": " +
                                            "none of its keys is of this language (" + listed(keys) + "). " +
                                            program->remedy);
    return true;
  }

  void foreign_keys(const ForeignProgram& program, const std::vector<const Found*>& keys,
                    const std::vector<const UnknownKey*>& more) {
    const Found& first = *keys.front();
    const bool advised = keys.size() == 1 && first.advice.meant_something;
    const std::string text =
        advised ? first.advice.text + (first.advice.repeats ? "" : kWithoutEffect) : foreign_text(program, keys, more);
    if (options_.strict) return problems_.error(first.key->path, text);
    problems_.warning(first.key->path, text);
  }

  void unknown(const Found& found, std::string text) {
    if (found.advice.repeats && !options_.strict) return problems_.warning(found.key->path, text);
    unknown(found.key->path, std::move(text), found.advice.changes_training);
  }

  void unknown(const std::string& path, std::string text, bool stays_error) {
    if (options_.warn && !stays_error) {
      // Before the lines that name folders, where there are such lines.
      text.insert(std::min(text.find('\n'), text.size()), kWithoutEffect);
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
