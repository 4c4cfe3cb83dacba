#include "cli/verify/verify_causes.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <vector>

#include "cli/verify/verify_record.hpp"
#include "core/tuning/trial_folder.hpp"

namespace capstan::cli {
namespace {

/// The strings of a list in a record's facts; empty where there is none.
std::vector<std::string> names_in(const Json& facts, const char* key) {
  std::vector<std::string> names;
  if (const Json* list = facts.find(key)) {
    for (const Json& name : list->as_array()) names.push_back(name.as_string());
  }
  return names;
}

std::string quoted_first(const std::vector<std::string>& names) {
  const std::size_t others = names.size() - 1;
  return "'" + names.front() + "'" + (others == 0 ? "" : " and " + std::to_string(others) + " more");
}

std::string short_loss(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.5g", value);
  return text;
}

/// Whether two runs have the same loss over tokens, and another mean of micro-batches' means.
std::string token_counts(const Json& reference, const Json& run) {
  const Json *theirs = reference.find("token_losses"), *ours = run.find("token_losses");
  if (!theirs || !ours || theirs->as_array().empty() || ours->as_array().empty()) return "";
  const auto first = [](const Json& list) { return list.as_array().front(); };
  const Json mean = first(run.at("losses")), other = first(reference.at("losses"));
  const Json by_token = first(*ours), other_by_token = first(*theirs);
  for (const Json* number : {&mean, &other, &by_token, &other_by_token}) {
    if (!number->is_number()) return "";
  }
  constexpr double kSame = 1e-4;
  const auto apart = [](const Json& a, const Json& b) {
    return std::abs(a.as_number() - b.as_number()) / std::max(std::abs(b.as_number()), 1e-12);
  };
  // With equal counts both means differ alike.
  if (apart(by_token, other_by_token) > kSame || apart(mean, other) < 10 * apart(by_token, other_by_token)) return "";
  return "Micro-batches have unequal counts of tokens, and each counts alike: the mean of their means is " +
         short_loss(mean.as_number()) + " here and " + short_loss(other.as_number()) +
         " there, the mean over tokens is " + short_loss(by_token.as_number()) +
         " in both. Return the sum over tokens divided by the tokens of the whole batch (transformers: "
         "num_items_in_batch), or pad and pack to equal counts.";
}

std::string changed_inputs(const Json& facts) {
  const std::vector<std::string> names = names_in(facts, "changed_inputs");
  if (names.empty()) return "";
  return "forward changes its input " + quoted_first(names) +
         " in place, so that whoever reads it next sees other values. Clone it first.";
}

}  // namespace

std::string warning_of(const std::filesystem::path& run) {
  const std::optional<Json> facts = read_json(RunRecord::facts(run));
  return facts ? changed_inputs(*facts) : "";
}

std::string cause_of(const std::filesystem::path& reference, const std::filesystem::path& run, bool other_split) {
  const std::optional<Json> theirs = read_json(RunRecord::facts(reference)), ours = read_json(RunRecord::facts(run));
  if (!theirs || !ours) return "";
  if (const std::string changed = changed_inputs(*ours); !changed.empty()) return changed;
  const std::vector<std::string> draws = names_in(*ours, "draws");
  for (const std::string& source : draws) {
    if (source == "LibTorch") continue;
    return "forward draws random numbers from " + source +
           ", which no checkpoint holds and nothing seeds by rank. Draw them from LibTorch: torch.rand, torch.randint.";
  }
  if (!other_split) return "";
  if (const auto norms = names_in(*ours, "batch_norms"); !norms.empty()) {
    return "The batch normalisation " + quoted_first(norms) +
           " takes its mean and variance from one micro-batch, so that the result depends on how a batch is split. "
           "Choose a normalisation of each sample (LayerNorm, GroupNorm), or freeze it with eval().";
  }
  if (const std::string counts = token_counts(*theirs, *ours); !counts.empty()) return counts;
  if (!draws.empty()) {
    return "forward draws random numbers, as dropout does: another split of the batch draws others for a sample. "
           "Verify "
           "with dropout 0; rows of one split are comparable as they are.";
  }
  return "";
}

}  // namespace capstan::cli
