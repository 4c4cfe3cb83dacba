#include "core/compression/compression_plan.hpp"

#include <algorithm>
#include <set>

#include "core/errors.hpp"

namespace capstan {
namespace {

constexpr std::size_t kMostRounds = 4, kMostMeasures = 16;
constexpr int kMostBits = 8;
constexpr std::int64_t kMostStateValues = std::int64_t{1} << 40;

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
        const std::string name = dotted(path, parameter.at("name").as_string());
        numels_[name] = trained ? numel : 0;
        for (const Json& size : parameter.at("shape").as_array()) shapes_[name].push_back(size.as_integer());
      }
    }
  }

  CompressionPlan read(const Json& json) const {
    CompressionPlan plan;
    for (const Json& one : list(json, "parameters")) {
      const std::string name = text(one, "name");
      if (!plan.parameters.emplace(name, parameter(one, name)).second) fail("parameter '" + name + "' is named twice");
      plan.order.push_back(name);
    }
    check_states(plan);
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
    made.zero_points = flag(json, "zero_points");
    for (const Json& state : list(json, "states")) made.states.push_back(this->state(state, name, made.layout.numel));
    if (json.find("states_of")) made.states_of = text(json, "states_of");
    made.gradient = flag(json, "gradient");
    return made;
  }

  static bool flag(const Json& json, const char* key) {
    const Json* value = json.find(key);
    return value && value->is_bool() && value->as_bool();
  }

  CompressionPlan::State state(const Json& json, const std::string& parameter, std::int64_t numel) const {
    CompressionPlan::State state;
    state.name = text(json, "name");
    if (state.name.empty() ||
        state.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") != std::string::npos) {
      fail("a state is named '" + state.name + "'; small letters, digits and _ make a name");
    }
    state.trained = flag(json, "trained");
    if (state.trained) {
      read_trained(json, parameter, state);
    } else {
      const std::string dtype = text(json, "dtype");
      if (dtype != "uint8" && dtype != "float32") fail("a state is of uint8 or float32, not of " + dtype);
      state.dtype = dtype == "uint8" ? at::kByte : at::kFloat;
      const Json* given = json.find("numel");
      state.of_elements = given == nullptr;
      state.numel = given == nullptr ? numel : integer(json, "numel", 1, kMostStateValues);
    }
    return state;
  }

  void read_trained(const Json& json, const std::string& parameter, CompressionPlan::State& state) const {
    state.dtype = at::kFloat;
    state.numel = 1;
    for (const Json& size : list(json, "shape")) {
      if (!size.is_integer() || size.as_integer() < 1 || size.as_integer() > kMostStateValues / state.numel) {
        fail("the shape of state '" + state.name + "' has " + size.dump());
      }
      state.shape.push_back(size.as_integer());
      state.numel *= size.as_integer();
    }
    if (state.shape.empty()) fail("the trained state '" + state.name + "' needs a shape");
    state.of_elements = state.shape == shapes_.at(parameter);
    const Json* bound = json.find("bound");
    if (bound == nullptr || !bound->is_number() || !(bound->as_number() >= 0) || bound->as_number() > 1e6) {
      fail("the trained state '" + state.name + "' needs a bound, 0 to 1e6");
    }
    state.bound = bound->as_number();
    const auto dot = parameter.rfind('.');
    state.parameter = (dot == std::string::npos ? "" : parameter.substr(0, dot + 1)) + state.name;
    if (numels_.contains(state.parameter)) fail("state '" + state.parameter + "' is a parameter of the model");
  }

  void check_states(const CompressionPlan& plan) const {
    std::set<std::string> trained;
    for (const auto& [name, parameter] : plan.parameters) {
      std::set<std::string> names;
      for (const CompressionPlan::State& state : parameter.states) {
        if (!names.insert(state.name).second) fail("parameter '" + name + "' has two states '" + state.name + "'");
        if (state.trained && !trained.insert(state.parameter).second) fail("two states are '" + state.parameter + "'");
      }
      if (parameter.states_of.empty()) continue;
      const auto of = plan.parameters.find(parameter.states_of);
      if (of == plan.parameters.end() || !parameter.states.empty() || !of->second.states_of.empty()) {
        fail("parameter '" + name + "' shows the states of '" + parameter.states_of +
             "', which must be in the plan with states of its own, and it must have none");
      }
    }
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
  std::map<std::string, std::vector<std::int64_t>> shapes_;
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
