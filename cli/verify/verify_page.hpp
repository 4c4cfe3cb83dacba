#pragma once

#include <string>
#include <vector>

#include "core/text/json.hpp"

namespace capstan::cli {

/// One variant of a verification, and the result of its comparison.
struct VerifyRow {
  enum class Verdict { kKept, kBroken, kNotThere, kFailed };
  std::string name;
  std::string badge;                             // what the variant shows: "ZeRO 3"; empty: nothing of its own
  std::string loss, gradients, weights, remark;  // as a table shows them
  Verdict verdict = Verdict::kKept;
};

/// Whether no variant differs or failed.
bool kept(const std::vector<VerifyRow>& rows);

/// "variants" with "name", "verdict" ("kept", "broken", "failed", "not there") and the columns, and "kept".
Json verify_json(const std::vector<VerifyRow>& rows);

/// A page that needs nothing but itself: a badge for each thing that variants show, and the table.
std::string verify_page(const std::string& title, const std::vector<VerifyRow>& rows);

}  // namespace capstan::cli
