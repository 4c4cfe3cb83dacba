#include "tests/core/config/key_rows.hpp"

#include <set>
#include <sstream>

#include "tests/core/config/config_cases.hpp"

namespace capstan::testing {
namespace {

KeyRow read_row(const std::string& line) {
  std::istringstream fields(line);
  std::string good, bad;
  KeyRow row;
  std::getline(fields, row.path, '\t');
  std::getline(fields, row.type, '\t');
  std::getline(fields, row.fallback, '\t');
  std::getline(fields, good, '\t');
  std::getline(fields, bad, '\t');
  row.good = Json::parse(good);
  row.bad = Json::parse(bad);
  return row;
}

std::string section_of(const std::string& path) {
  const auto dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

}  // namespace

std::vector<KeyRow> key_rows() {
  // Sections whose neighbours must be given with them.
  static const std::set<std::string> demanding = {"optimizer", "scheduler", "zero_optimization.offload_param",
                                                  "zero_optimization.offload_optimizer"};
  std::vector<KeyRow> out;
  std::istringstream lines(read_text(configs_folder() / "keys.tsv"));
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    out.push_back(read_row(line));
    KeyRow& row = out.back();
    const bool group = row.path.find("<metric>") != std::string::npos || row.path.find("<group>") != std::string::npos;
    row.stands_alone = !demanding.contains(section_of(row.path)) && !group;
  }
  return out;
}

Json document_with(const std::string& path, const Json& value) {
  const auto dot = path.find('.');
  std::string key = path.substr(0, dot);
  const bool list = key.ends_with("[]");
  if (list) key.resize(key.size() - 2);
  if (key.starts_with('<')) key = "x";
  Json inner = dot == std::string::npos ? value : document_with(path.substr(dot + 1), value);
  Json out = Json::object();
  out[key] = list ? Json(Json::Array{inner}) : inner;
  return out;
}

std::string concrete_path(std::string path) {
  for (auto open = path.find('<'); open != std::string::npos; open = path.find('<')) {
    path.replace(open, path.find('>') - open + 1, "x");
  }
  for (auto list = path.find("[]"); list != std::string::npos; list = path.find("[]")) path.replace(list, 2, "[0]");
  return path;
}

}  // namespace capstan::testing
