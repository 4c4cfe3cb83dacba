#include "cli/html.hpp"

namespace capstan::cli {
namespace {

constexpr const char* kStyle = R"css(
:root{color-scheme:light dark;--ink:#1b1b1f;--soft:#6a6a74;--grid:#dcdce3;--paper:#fff;
--c0:#2563b0;--c1:#c2571a;--c2:#2c8a4b;--c3:#8d3fa8;--c4:#a8862a;--c5:#b02a50}
@media(prefers-color-scheme:dark){:root{--ink:#e6e6ea;--soft:#9a9aa6;--grid:#34343d;--paper:#17171b;
--c0:#6aa5ee;--c1:#ee9560;--c2:#66c488;--c3:#c98ae0;--c4:#d9bb66;--c5:#ec7c9c}}
body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:2rem auto;max-width:1120px;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1rem;margin:0 0 .3rem}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(480px,100%),1fr));gap:1.6rem}
svg{width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:var(--soft)}
.grid{stroke:var(--grid)}.line{fill:none;stroke-width:1.6;stroke-linejoin:round}.area{stroke:none;fill-opacity:.75}
.bad{fill:var(--c5)}.key{font-size:.85rem;color:var(--soft);margin:0}.key i{display:inline-block;width:.8em;height:.8em;margin:0 .3em 0 .9em}
table{border-collapse:collapse;margin-top:.4rem;font-variant-numeric:tabular-nums}
td,th{padding:.15rem .9rem .15rem 0;text-align:right}td:first-child,th:first-child{text-align:left}th{color:var(--soft);font-weight:500}
)css";

}  // namespace

std::string html_escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string html_page(const std::string& title, const std::string& style, const std::string& body) {
  return "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
         "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>" +
         html_escaped(title) + "</title><style>" + kStyle + style + "</style></head><body>\n" + body +
         "</body></html>\n";
}

}  // namespace capstan::cli
