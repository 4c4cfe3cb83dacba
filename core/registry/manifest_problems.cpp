#include "core/registry/manifest_problems.hpp"

#include <algorithm>
#include <iterator>

#include "core/errors.hpp"

namespace capstan {

void ManifestProblems::error(std::optional<std::size_t> offset, const std::string& message) {
  add(offset, message, false);
}

void ManifestProblems::warning(std::optional<std::size_t> offset, const std::string& message) {
  add(offset, message, true);
}

void ManifestProblems::asked(const std::string& table, const std::string& key, const std::vector<std::string>& values) {
  vocabulary_[table][key].insert(values.begin(), values.end());
}

void ManifestProblems::add(std::optional<std::size_t> offset, const std::string& message, bool only_warns) {
  std::string text = "manifest";
  if (offset) text += ":" + std::to_string(places_.line(*offset)) + ":" + std::to_string(places_.column(*offset));
  found_.push_back({offset ? *offset + 1 : 0, text + ": " + message, only_warns});
}

std::vector<std::string> ManifestProblems::sorted(bool warnings) const {
  std::vector<Found> chosen;
  std::copy_if(found_.begin(), found_.end(), std::back_inserter(chosen),
               [&](const Found& one) { return one.only_warns == warnings; });
  std::stable_sort(chosen.begin(), chosen.end(), [](const Found& a, const Found& b) { return a.order < b.order; });
  std::vector<std::string> texts;
  for (Found& one : chosen) texts.push_back(std::move(one.text));
  return texts;
}

std::vector<std::string> ManifestProblems::warnings() const { return sorted(true); }

void ManifestProblems::throw_errors(const std::string& where) const {
  constexpr std::size_t kMost = 20;
  const std::vector<std::string> errors = sorted(false);
  if (errors.empty()) return;
  std::string text = where + ": ";
  for (std::size_t i = 0; i < errors.size() && i < kMost; ++i) text += (i > 0 ? "\n  " : "") + errors[i];
  if (errors.size() > kMost) text += "\n  and " + std::to_string(errors.size() - kMost) + " more errors.";
  throw PluginError(text);
}

}  // namespace capstan
