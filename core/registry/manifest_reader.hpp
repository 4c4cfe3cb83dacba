#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/text/json.hpp"

namespace capstan {

/// One table of a manifest: typed access by key, each failure a PluginError "<where>: <path>.<key>: ...". It remembers
/// what was asked for, so that what nobody read is reported as unknown. Lives no longer than the document.
class ManifestTable {
 public:
  ManifestTable(const Json& table, std::string where, std::string path);

  const Json* find(const std::string& key) const;

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
  /// One of `known`; `otherwise` empty: required.
  std::string choice(const std::string& key, const std::string& otherwise, const std::vector<std::string>& known) const;
  std::vector<std::string> choices(const std::string& key, const std::vector<std::string>& known) const;

  ManifestTable table(const std::string& key) const;
  std::vector<ManifestTable> list(const std::string& key) const;                            // a list of tables
  std::vector<std::pair<std::string, ManifestTable>> tables(const std::string& key) const;  // a table of tables

  void reject_unread() const;
  [[noreturn]] void fail(const std::string& key, const std::string& message) const;

 private:
  [[noreturn]] void fail_type(const std::string& key, const std::string& wanted, const Json& found) const;
  std::string full(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }

  const Json* json_;
  std::string where_, path_;
  std::shared_ptr<std::set<std::string>> read_ = std::make_shared<std::set<std::string>>();
};

}  // namespace capstan
