#include "core/config/tools/json_schema.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "core/text/relaxed.hpp"
#include "tests/core/config/config_cases.hpp"
#include "tests/core/config/key_rows.hpp"
#include "tests/core/data/temporary_folder.hpp"

namespace capstan::testing {
namespace {

/// The interpreter of the environment into which scripts/setup installs jsonschema.
const std::string kPython = "'" + std::string(CAPSTAN_TEST_SOURCE_DIR) + "/.venv/bin/python'";

/// Texts of refusals that no schema can express: they compare keys, or count them twice.
bool between_keys(const std::string& message) {
  for (const char* mark :
       {"(data-parallel size)", "given twice", "needs stage", "Muon needs", "unlike", "cannot both"}) {
    if (message.find(mark) != std::string::npos) return true;
  }
  return false;
}

/// Runs the independent implementation; the lines on which it disagrees.
std::string disagreements(const std::vector<std::string>& lines) {
  const test::TemporaryFolder folder;
  std::ofstream(folder / "schema.json") << json_schema(all_components()).dump();
  std::ofstream documents(folder / "documents.jsonl");
  for (const std::string& line : lines) documents << line << "\n";
  documents.close();
  const std::string command = kPython + " '" CAPSTAN_TEST_SOURCE_DIR "/tests/core/config/check_schema.py' '" +
                              (folder / "schema.json").string() + "' '" + (folder / "documents.jsonl").string() +
                              "' 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  std::string out;
  char buffer[4096];
  while (pipe && std::fgets(buffer, sizeof buffer, pipe)) out += buffer;
  if (pipe) pclose(pipe);
  return out;
}

bool has_jsonschema() { return std::system((kPython + " -c 'import jsonschema' >/dev/null 2>&1").c_str()) == 0; }

std::string line(bool expected, const Json& document, const std::string& name) {
  return Json(Json::Array{expected, document, name}).dump();
}

TEST(JsonSchema, AgreesWithTheReferenceOnEveryValueOfEveryKey) {
  if (!has_jsonschema()) GTEST_SKIP() << kPython << " has no jsonschema package: run scripts/setup";
  std::vector<std::string> lines;
  for (const KeyRow& row : key_rows()) {
    // Neighbours that must be given would be missing from a document of one key.
    if (!row.stands_alone) continue;
    for (const Json& value : row.good.as_array()) lines.push_back(line(true, document_with(row.path, value), row.path));
    for (const Json& value : row.bad.as_array()) lines.push_back(line(false, document_with(row.path, value), row.path));
  }
  EXPECT_EQ(disagreements(lines), "");
}

TEST(JsonSchema, ListsTypesAndWordsFromWhichAnEditorCompletes) {
  const Json properties = json_schema(all_components()).at("properties");
  const Json& types = properties.at("scheduler").at("anyOf").as_array()[0].at("properties").at("type");
  EXPECT_EQ(types.at("anyOf").as_array()[0].dump(),
            R"({"enum":["WarmupLR","WarmupDecayLR","WarmupCosineLR","LRRangeTest","OneCycle"]})");
  const Json& kinds = properties.at("zero_optimization").at("anyOf").as_array()[0].at("properties");
  const Json& devices = kinds.at("offload_optimizer").at("anyOf").as_array()[0].at("properties").at("device");
  EXPECT_EQ(devices.at("anyOf").as_array()[0].dump(), R"({"enum":["none","cpu","nvme"]})");
}

TEST(JsonSchema, AgreesWithTheValidatorOnPublicFiles) {
  if (!has_jsonschema()) GTEST_SKIP() << kPython << " has no jsonschema package: run scripts/setup";
  std::vector<std::string> lines;
  for (const auto& entry : std::filesystem::directory_iterator(configs_folder() / "wild")) {
    const std::string name = entry.path().filename().string();
    // 031 is an autotuning file: its lists are a space to search.
    if (entry.path().extension() != ".json" || name.starts_with("031-")) continue;
    const ConfigText text = read_config_text(entry.path().string());
    Problems syntax;
    const auto document = parse_relaxed(text.text, syntax);
    if (!document) continue;
    ConfigContext context;
    context.check_only = true;
    context.world_known = false;
    context.strict = true;  // the schema knows no other program's options
    bool refused = false;
    const ConfigReading reading = read_config(text, context, all_components());
    for (const Problem& problem : reading.problems.all()) {
      refused |= problem.severity == Problem::Severity::kError && !between_keys(problem.message);
    }
    if (!refused && !reading.config) continue;  // only rules between keys
    lines.push_back(line(!refused, *document, name));
  }
  EXPECT_GT(lines.size(), 80u);
  EXPECT_EQ(disagreements(lines), "");
}

TEST(JsonSchema, RefusesWhatTheIndependentImplementationIsToldIsValid) {
  if (!has_jsonschema()) GTEST_SKIP() << kPython << " has no jsonschema package: run scripts/setup";
  const std::string out = disagreements({line(true, Json::parse(R"({"gradient_cliping": 1})"), "slip"),
                                         line(true, Json::parse(R"({"gradient_clipping": 1})"), "right"),
                                         line(false, Json::parse(R"({"optimizer": {"type": "ADAMW"}})"), "type")});
  EXPECT_NE(out.find("slip: expected valid"), std::string::npos) << out;
  EXPECT_NE(out.find("type: expected invalid"), std::string::npos) << out;
  EXPECT_EQ(out.find("right:"), std::string::npos) << out;
}

}  // namespace
}  // namespace capstan::testing
