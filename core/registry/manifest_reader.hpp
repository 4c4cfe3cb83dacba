#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/registry/manifest_problems.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// One table of a manifest: typed access by key. Each failure is reported as "<path>.<key>: ...", and reading goes on
/// with the default, or an empty value. It remembers what was asked for, so that what nobody read is reported as
/// unknown. Lives no longer than the document and the problems.
class ManifestTable {
 public:
  ManifestTable(const Json& table, ManifestProblems& problems, std::string path);

  const Json* find(const std::string& key) const;
  /// A key that is none of the language any more.
  const Json* find_unread(const std::string& key) const;

  // Without a default the key is required.
  std::string text(const std::string& key) const;
  std::string text(const std::string& key, const std::string& otherwise) const;
  bool boolean(const std::string& key, bool otherwise) const;
  double number(const std::string& key, double otherwise) const;
  std::int64_t integer(const std::string& key, std::int64_t otherwise, std::int64_t min, std::int64_t max) const;
  /// A name of letters, digits, '_', '-', '.' and '+'.
  std::string name(const std::string& key) const;
  std::vector<std::string> names(const std::string& key) const;
  /// "2.11" or "2.11.0".
  std::string version(const std::string& key) const;
  /// A semantic version, of which the minor version and the patch may be left out: "1.2.0-rc.1", "1.2".
  std::string semantic_version(const std::string& key) const;
  /// One of `known`; `otherwise` empty: required. Empty when it is none of them.
  std::string choice(const std::string& key, const std::string& otherwise, const std::vector<std::string>& known) const;
  /// Those of a list of names that are `known`.
  std::vector<std::string> choices(const std::string& key, const std::vector<std::string>& known) const;

  ManifestTable table(const std::string& key) const;
  std::vector<ManifestTable> list(const std::string& key) const;                            // a list of tables
  std::vector<std::pair<std::string, ManifestTable>> tables(const std::string& key) const;  // a table of tables

  /// Notes words that the value of a key may be, for those who look for all that the reader knows.
  void knows(const std::string& key, const std::vector<std::string>& words) const;
  /// Reports keys that nobody asked for, and required keys that are missing but for those that an unknown key seems to
  /// mean. Call it last.
  void reject_unread() const;
  void fail(const std::string& key, const std::string& message) const;
  void warn(const std::string& key, const std::string& message) const;
  /// Reports a required key as missing, once reject_unread() is called.
  void miss(const std::string& key, const std::string& message = "is missing.") const;

 private:
  struct Asked {
    std::set<std::string> keys;
    std::vector<std::pair<std::string, std::string>> missing;  // key and message
  };

  void fail_type(const std::string& key, const std::string& wanted, const Json& found) const;
  std::string full(const std::string& key) const;
  std::optional<std::size_t> offset(const std::string& key) const;

  const Json* json_;  // null where the document has none: then nothing is reported
  ManifestProblems* problems_;
  std::string path_;
  std::shared_ptr<Asked> asked_ = std::make_shared<Asked>();
};

}  // namespace capstan
