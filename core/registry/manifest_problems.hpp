#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/registry/manifest.hpp"
#include "core/text/places.hpp"

namespace capstan {

/// What is wrong with one manifest, all of it, and what its reader asked for.
class ManifestProblems {
 public:
  /// `text`: of the manifest, whose lines the messages name.
  explicit ManifestProblems(std::string_view text) : places_(text) {}

  /// `offset`: of the byte in the text, where there is one.
  void error(std::optional<std::size_t> offset, const std::string& message);
  /// For what a manifest may say and its author hardly means.
  void warning(std::optional<std::size_t> offset, const std::string& message);
  /// Remembers a key that the reader knows, and the values that it may have where they are words.
  void asked(const std::string& table, const std::string& key, const std::vector<std::string>& values = {});

  /// Throws PluginError with all errors, one a line in the order of the text; `where` opens the first.
  void throw_errors(const std::string& where) const;
  std::vector<std::string> warnings() const;
  const ManifestVocabulary& vocabulary() const { return vocabulary_; }

 private:
  struct Found {
    std::size_t order;  // behind the byte at which it stands; 0: at none
    std::string text;
    bool only_warns;
  };

  void add(std::optional<std::size_t> offset, const std::string& message, bool only_warns);
  std::vector<std::string> sorted(bool warnings) const;

  TextPlaces places_;
  std::vector<Found> found_;
  ManifestVocabulary vocabulary_;
};

}  // namespace capstan
