#include "core/compression/compression_plan.hpp"

#include <algorithm>
#include <set>

#include "core/errors.hpp"

namespace capstan {
namespace {

constexpr std::size_t kMostRounds = 4, kMostMeasures = 16;
constexpr int kMostBits = 8;

std::string dotted(const std::string& path, const std::string& name) { return path.empty() ? name : path + "." + name; }

/// Reads a plan, and says what is wrong with it in the plugin's name.
class PlanReader {
 public:
  PlanReader(const Json& modules, std::string where) : where_(std::move(where)) {
    for (const Json& module : modules.at("modules").as_array()) {
      const std::string& path = module.at("path").as_string();
      paths_.insert(path);
      for (const Json& parameter : module.at("parameters").as_array()) {
        std::int64_t numel = 1;
        for (const Json& size : parameter.at("shape").as_array()) numel *= size.as_integer();
        const bool trained = parameter.at("trained").as_bool();
        numels_[dotted(path, parameter.at("name").as_string())] = trained ? numel : 0;
      }
    }
  }

  CompressionPlan read(const Json& json) const {
    CompressionPlan plan;
    for (const Json& one : list(json, "parameters")) {
      const std::string name = text(one, "name");
      if (!plan.parameters.emplace(name, parameter(one, name)).second) fail("parameter '" + name + "' is named twice");
    }
    plan.operands = texts(json, "operands");
    for (const std::string& path : plan.operands) {
      if (!paths_.contains(path)) fail("operand '" + path + "' is no module of the model");
    }
    plan.named_by = named_by(json);
    plan.report = texts(json, "report");
    plan.warnings = texts(json, "warnings");
    return plan;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw PluginError(where_ + ", plan: " + what + ". Ask the plugin's author.");
  }

  std::string text(const Json& json, const char* key) const {
    const Json* value = json.find(key);
    if (!value || !value->is_string()) fail("'" + std::string(key) + "' must be a text");
    return value->as_string();
  }

  std::vector<Json> list(const Json& json, const char* key) const {
    const Json* value = json.find(key);
    if (!value || value->is_null()) return {};
    if (!value->is_array()) fail("'" + std::string(key) + "' must be a list");
    return value->as_array();
  }

  std::vector<std::string> texts(const Json& json, const char* key) const {
    std::vector<std::string> out;
    for (const Json& one : list(json, key)) {
      if (!one.is_string()) fail("'" + std::string(key) + "' must be a list of texts");
      out.push_back(one.as_string());
    }
    return out;
  }

  std::map<std::string, std::string> named_by(const Json& json) const {
    std::map<std::string, std::string> out;
    const Json* given = json.find("named_by");
    if (!given || given->is_null()) return out;
    if (!given->is_object()) fail("'named_by' must be an object of texts");
    for (const auto& [path, key] : given->as_object()) {
      if (!key.is_string()) fail("'named_by' must be an object of texts");
      out[path] = key.as_string();
    }
    return out;
  }

  std::int64_t integer(const Json& json, const char* key, std::int64_t otherwise, std::int64_t most) const {
    const Json* value = json.find(key);
    if (!value || value->is_null()) return otherwise;
    if (!value->is_integer() || value->as_integer() < 1 || value->as_integer() > most) {
      fail("'" + std::string(key) + "' must be 1 to " + std::to_string(most) + ", got " + value->dump());
    }
    return value->as_integer();
  }

  CompressionPlan::Parameter parameter(const Json& json, const std::string& name) const {
    const auto found = numels_.find(name);
    if (found == numels_.end()) fail("'" + name + "' is no parameter of the model");
    if (found->second == 0) fail("parameter '" + name + "' is not trained, or has no elements");
    CompressionPlan::Parameter made;
    made.layout = {found->second, integer(json, "groups", 1, found->second)};
    if (made.layout.numel % made.layout.groups != 0) {
      fail("parameter '" + name + "' has " + std::to_string(made.layout.numel) + " elements, which are not " +
           std::to_string(made.layout.groups) + " groups of one size");
    }
    for (const Json& round : list(json, "measures")) made.measures.push_back(joins(round));
    if (made.measures.size() > kMostRounds) fail("more than " + std::to_string(kMostRounds) + " rounds of measures");
    made.bits = static_cast<int>(integer(json, "bits", 0, kMostBits));
    if (const Json* points = json.find("zero_points")) made.zero_points = points->is_bool() && points->as_bool();
    return made;
  }

  std::vector<Join> joins(const Json& round) const {
    std::vector<Join> out;
    if (!round.is_array() || round.size() == 0 || round.size() > kMostMeasures) {
      fail("'measures' must be lists of 1 to " + std::to_string(kMostMeasures) + " words");
    }
    for (const Json& word : round.as_array()) {
      if (word == Json("max")) {
        out.push_back(Join::kMax);
      } else if (word == Json("min")) {
        out.push_back(Join::kMin);
      } else if (word == Json("sum")) {
        out.push_back(Join::kSum);
      } else {
        fail("a measure is joined by max, min or sum, not by " + word.dump());
      }
    }
    return out;
  }

  std::string where_;
  std::set<std::string> paths_;
  std::map<std::string, std::int64_t> numels_;  // 0: not trained
};

}  // namespace

std::size_t CompressionPlan::Parameter::numbers() const {
  std::size_t count = 0;
  for (const std::vector<Join>& round : measures) count += round.size();
  return count;
}

CompressionPlan read_plan(const Json& plan, const Json& modules, const std::string& where) {
  return PlanReader(modules, where).read(plan);
}

}  // namespace capstan
