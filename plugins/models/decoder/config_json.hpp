#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "capstan/sdk/component.hpp"

namespace capstan::models {

/// Reads members of the object `config` among a model's parameters: the contents of a config.json of transformers, or
/// an object within it. A member that is null, or an empty list or object, counts as absent, as it does there.
///
/// Functions that read throw sdk::ConfigMistake with the member's path in the configuration where a value is missing,
/// has another type or is out of range. Valid while `params` is.
class ConfigJson {
 public:
  explicit ConfigJson(const sdk::Params& params) : ConfigJson(params, "/config", "capstan.model.params.config") {}

  bool has(const std::string& key) const;
  /// Whether the member stands there as null.
  bool is_null(const std::string& key) const;
  /// Whole numbers from 1 on.
  std::int64_t count(const std::string& key) const;
  std::int64_t count(const std::string& key, std::int64_t otherwise) const;
  double number(const std::string& key) const;
  double number(const std::string& key, double otherwise) const;
  /// A number above 0.
  double positive(const std::string& key) const;
  double positive(const std::string& key, double otherwise) const;
  bool flag(const std::string& key, bool otherwise) const;
  std::string text(const std::string& key, const std::string& otherwise) const;
  std::vector<double> numbers(const std::string& key) const;
  std::vector<std::string> texts(const std::string& key) const;
  /// The object under `key`; without members where it is absent.
  ConfigJson object(const std::string& key) const;
  /// The whole object as JSON.
  std::string json() const { return params_.text(pointer_); }

  [[noreturn]] void refuse(const std::string& key, const std::string& why) const;

 private:
  ConfigJson(const sdk::Params& params, std::string pointer, std::string path)
      : params_(params), pointer_(std::move(pointer)), path_(std::move(path)) {}

  std::string pointer(const std::string& key) const { return pointer_ + "/" + key; }
  /// The value as JSON, but for texts, which come without quotes.
  std::string found(const std::string& key) const { return params_.text(pointer(key)); }

  sdk::Params params_;
  std::string pointer_, path_;
};

}  // namespace capstan::models
