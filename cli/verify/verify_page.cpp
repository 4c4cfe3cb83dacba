#include "cli/verify/verify_page.hpp"

#include <algorithm>

#include "cli/html.hpp"
#include "cli/version.hpp"

namespace capstan::cli {
namespace {

using Verdict = VerifyRow::Verdict;

constexpr const char* kStyle = R"css(
.badges{display:flex;flex-wrap:wrap;gap:.4rem;margin:0 0 1.4rem;padding:0;list-style:none}
.badges li{padding:.1rem .7rem;border-radius:1rem;color:var(--paper)}
.kept{background:var(--c2)}.broken,.failed{background:var(--c5)}.not-there{background:var(--soft)}
td.kept,td.broken,td.failed,td.not-there{background:none}td.broken,td.failed{color:var(--c5)}
td{text-align:left;vertical-align:top}
)css";

const char* word_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kKept:
      return "kept";
    case Verdict::kBroken:
      return "broken";
    case Verdict::kFailed:
      return "failed";
    case Verdict::kNotThere:
      return "not there";
  }
  return "";
}

std::string class_of(Verdict verdict) {
  std::string name = word_of(verdict);
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

/// A badge and the worst of the variants that show it: one that differs outweighs one that failed, and both one that
/// the configuration cannot have.
struct Badge {
  std::string text;
  Verdict verdict;
};

std::vector<Badge> badges_of(const std::vector<VerifyRow>& rows) {
  constexpr auto kWeight = [](Verdict verdict) {
    return verdict == Verdict::kBroken ? 3 : verdict == Verdict::kFailed ? 2 : verdict == Verdict::kKept ? 1 : 0;
  };
  std::vector<Badge> badges;
  for (const VerifyRow& row : rows) {
    if (row.badge.empty()) continue;
    const auto found =
        std::find_if(badges.begin(), badges.end(), [&](const Badge& badge) { return badge.text == row.badge; });
    if (found == badges.end()) {
      badges.push_back({row.badge, row.verdict});
    } else if (kWeight(row.verdict) > kWeight(found->verdict)) {
      found->verdict = row.verdict;
    }
  }
  return badges;
}

}  // namespace

bool kept(const std::vector<VerifyRow>& rows) {
  return std::none_of(rows.begin(), rows.end(), [](const VerifyRow& row) {
    return row.verdict == Verdict::kBroken || row.verdict == Verdict::kFailed;
  });
}

Json verify_json(const std::vector<VerifyRow>& rows) {
  Json all = Json::object();
  all["variants"] = Json::array();
  for (const VerifyRow& row : rows) {
    Json one = Json::object();
    one["name"] = row.name;
    one["verdict"] = word_of(row.verdict);
    one["loss"] = row.loss;
    one["gradients"] = row.gradients;
    one["weights"] = row.weights;
    one["remark"] = row.remark;
    all["variants"].push_back(one);
  }
  all["kept"] = kept(rows);
  return all;
}

std::string verify_page(const std::string& title, const std::vector<VerifyRow>& rows) {
  std::string body = "<h1>" + html_escaped(title) + "</h1>\n<ul class=\"badges\">\n";
  for (const Badge& badge : badges_of(rows)) {
    body += "<li class=\"" + class_of(badge.verdict) + "\">" + html_escaped(badge.text) +
            (badge.verdict == Verdict::kKept ? "" : std::string(": ") + word_of(badge.verdict)) + "</li>\n";
  }
  body += "</ul>\n<table><tr><th>variant</th><th>loss</th><th>gradients</th><th>weights</th><th></th></tr>\n";
  for (const VerifyRow& row : rows) {
    body += "<tr>";
    for (const std::string* cell : {&row.name, &row.loss, &row.gradients, &row.weights, &row.remark}) {
      body += "<td class=\"" + class_of(row.verdict) + "\">" + html_escaped(*cell) + "</td>";
    }
    body += "</tr>\n";
  }
  return html_page(title, kStyle, body + "</table>\n<p class=\"key\">" + html_escaped(version_text()) + "</p>\n");
}

}  // namespace capstan::cli
