#include "cli/data/document_stats.hpp"

#include <algorithm>
#include <vector>

#include "core/text/numbers.hpp"
#include "core/text/table.hpp"

namespace capstan::cli {
namespace {

double share(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

std::string percent(double value) { return fixed(100 * value, 1) + " %"; }

/// "12", or "12.5" between two lengths.
std::string median_text(double median) {
  const auto whole = static_cast<std::int64_t>(median);
  return static_cast<double>(whole) == median ? grouped(whole) : fixed(median, 1);
}

/// A bar of the histogram, as blocks of at most `width` columns; a bar of any document is seen.
std::string bar_text(std::int64_t value, std::int64_t most, int width) {
  std::string text;
  const auto blocks = static_cast<std::int64_t>(share(value, most) * width + 0.5);
  for (std::int64_t i = 0; i < std::max<std::int64_t>(blocks, value > 0); ++i) text += "█";
  return text;
}

}  // namespace

DocumentStats::DocumentStats(std::int64_t row_length) : row_length_(row_length) {
  if (row_length > 0) packed_.emplace(row_length);
}

void DocumentStats::add(std::int64_t tokens, std::optional<std::int64_t> counted) {
  lengths_.add(tokens);
  has_mask_ = has_mask_ || counted.has_value();
  counted_ += counted.value_or(tokens);
  if (packed_ && tokens > 0) packed_->add(std::min(tokens, row_length_));
}

void DocumentStats::add_rows(std::int64_t rows, std::int64_t length, std::int64_t documents, std::int64_t tokens) {
  rows_ += rows;
  room_ += rows * length;
  row_documents_ += documents;
  row_tokens_ += tokens;
}

Json DocumentStats::packing_json() const {
  const std::int64_t alone = lengths_.missing_to(row_length_), cut = lengths_.beyond(row_length_);
  const std::int64_t held = lengths_.total() - cut, rows = packed_->rows();
  Json json = Json::object();
  json["row_length"] = row_length_;
  json["padding_alone"] = share(alone, documents() * row_length_);
  json["rows_packed"] = rows;
  json["padding_packed"] = share(rows * row_length_ - held, rows * row_length_);
  json["documents_a_row"] = share(documents(), rows);
  json["tokens_cut"] = cut;
  return json;
}

double DocumentStats::padding() const { return share(room_ - row_tokens_, room_); }

Json DocumentStats::json() const {
  Json json = Json::object();
  json["unit"] = unit;
  json["documents"] = documents();
  if (without_label > 0) json["documents_without_label"] = without_label;
  json["tokens"] = lengths_.total();
  if (has_mask_) json["tokens_in_loss"] = counted_;
  if (!roles.empty()) {
    Json by_role = Json::object();
    for (const auto& [role, tokens] : roles) by_role[role] = tokens;
    json["tokens_by_role"] = by_role;
  }
  Json length = Json::object();
  length["min"] = lengths_.least();
  length["median"] = lengths_.median();
  length["mean"] = lengths_.mean();
  length["p95"] = lengths_.quantile(0.95);
  length["max"] = lengths_.greatest();
  json["length"] = length;
  Json bars = Json::array();
  for (const LengthCounts::Bar& bar : lengths_.histogram()) {
    Json one = Json::object();
    one["from"] = bar.least;
    one["to"] = bar.greatest;
    one["documents"] = bar.documents;
    bars.push_back(one);
  }
  json["histogram"] = bars;
  if (rows_ > 0) {
    json["rows"] = rows_;
    json["documents_a_row"] = share(row_documents_, rows_);
    json["padding"] = padding();
  }
  if (packed_) json["packing"] = packing_json();
  return json;
}

std::string DocumentStats::text(int width) const {
  std::vector<std::vector<std::string>> facts = {{"documents", grouped(documents())},
                                                 {unit + "s", grouped(lengths_.total())}};
  if (has_mask_)
    facts.push_back({"in the loss", grouped(counted_) + " (" + percent(share(counted_, lengths_.total())) + ")"});
  if (without_label > 0) {
    facts.push_back({"left out", counted(without_label, "document") + ", as the loss counts no token of them"});
  }
  std::vector<std::string> by_role;
  for (const auto& [role, tokens] : roles) by_role.push_back(role + " " + grouped(tokens));
  if (!by_role.empty()) facts.push_back({"by role", joined(by_role)});
  facts.push_back({"length", "min " + grouped(lengths_.least()) + ", median " + median_text(lengths_.median()) +
                                 ", mean " + fixed(lengths_.mean(), 1) + ", 95 % " + grouped(lengths_.quantile(0.95)) +
                                 ", max " + grouped(lengths_.greatest())});
  if (rows_ > 0) {
    facts.push_back({"rows", grouped(rows_) + ", of " + fixed(share(row_documents_, rows_), 1) + " documents, " +
                                 percent(padding()) + " padding"});
  }
  if (packed_) {
    const std::int64_t rows = packed_->rows(), cut = lengths_.beyond(row_length_);
    const std::string of = " rows of " + grouped(row_length_) + ", ";
    facts.push_back({"not packed", grouped(documents()) + of +
                                       percent(share(lengths_.missing_to(row_length_), documents() * row_length_)) +
                                       " padding"});
    facts.push_back({"packed", grouped(rows) + of + fixed(share(documents(), rows), 1) + " documents a row, " +
                                   percent(share(rows * row_length_ - lengths_.total() + cut, rows * row_length_)) +
                                   " padding"});
    if (cut > 0) facts.push_back({"cut", counted(cut, "token") + " beyond the ends of rows"});
  }
  std::vector<std::vector<std::string>> bars;
  std::int64_t most = 0;
  const std::vector<LengthCounts::Bar> histogram = lengths_.histogram();
  for (const LengthCounts::Bar& bar : histogram) most = std::max(most, bar.documents);
  for (const LengthCounts::Bar& bar : histogram) {
    const std::string range =
        bar.least == bar.greatest ? grouped(bar.least) : grouped(bar.least) + " to " + grouped(bar.greatest);
    bars.push_back(
        {"  " + range, grouped(bar.documents), bar_text(bar.documents, most, std::clamp(width - 50, 10, 40))});
  }
  return table_text(facts) + "\ndocuments by length\n" + table_text(bars);
}

}  // namespace capstan::cli
