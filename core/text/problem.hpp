#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace capstan {

/// One thing that the reader of a configuration should know.
struct Problem {
  enum class Severity { kError, kWarning, kNotice };

  Severity severity = Severity::kError;
  std::string path;          // "optimizer.params.lr"; empty for the file as a whole
  std::string message;       // what was found and what would be right, without the path
  int line = 0, column = 0;  // 1-based; 0 where the text has no such place

  /// "ds_config.json:3:5: optimizer.params.lr: must be above 0, got -1."
  std::string text(const std::string& file) const;
};

/// All problems of one reading, in the order of the text.
class Problems {
 public:
  void error(std::string path, std::string message);
  void warning(std::string path, std::string message);
  void notice(std::string path, std::string message);

  bool has_errors() const;
  const std::vector<Problem>& all() const { return all_; }
  std::vector<Problem>& all() { return all_; }

 private:
  std::vector<Problem> all_;
};

}  // namespace capstan
