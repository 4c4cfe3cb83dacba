#include "core/model/fp32_buffers.hpp"

#include <regex>

#include "core/errors.hpp"
#include "core/text/nearest.hpp"

namespace capstan {
namespace {

constexpr const char* kFact = "fp32_buffers";

/// As the configuration has it: each * of an expression is from a * of the pattern.
std::string pattern_of(std::string expression) {
  for (auto at = expression.find(".*"); at != std::string::npos; at = expression.find(".*", at + 1)) {
    expression.erase(at, 1);
  }
  return expression;
}

void add_matches(const std::vector<std::string>& expressions, const Model& model, Fp32Buffers& found) {
  std::vector<std::string> all;
  for (const NamedTensor& buffer : model.buffers()) all.push_back(buffer.name);
  for (const std::string& text : expressions) {
    const std::regex expression(text);
    bool fits = false;
    for (const std::string& name : all) {
      if (!std::regex_search(name, expression)) continue;
      fits = true;
      found.names.insert(name);
    }
    if (fits) continue;
    const std::string pattern = pattern_of(text);
    found.warnings.push_back("data_types.keep_in_fp32_modules: '" + pattern + "' fits no buffer of the model." +
                             suggestion(pattern, all));
  }
}

}  // namespace

Fp32Buffers fp32_buffers(const PrecisionConfig& precision, const Model& model) {
  Fp32Buffers found;
  if (precision.compute == Precision::kFp32) return found;
  if (precision.fp32_buffers) {
    add_matches(*precision.fp32_buffers, model, found);
    return found;
  }
  const Json facts = model.describe();
  const Json* fact = facts.find(kFact);
  if (fact == nullptr) return found;
  const char* const type = precision.compute == Precision::kBf16 ? "bfloat16" : "float16";
  const Json* list = fact->is_object() ? fact->find(type) : nullptr;
  if (list == nullptr || !list->is_array()) {
    throw PluginError("model '" + model.description() + "', describe: " + kFact +
                      ": must be an object with an array of names under \"" + type + "\", got " + fact->dump() + ".");
  }
  for (const Json& name : list->as_array()) {
    if (name.is_string()) found.names.insert(name.as_string());
  }
  return found;
}

}  // namespace capstan
