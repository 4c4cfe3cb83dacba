#pragma once

#include <charconv>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "capstan/sdk/component.hpp"

/// The model that a compression is given, and its answer: which parameters and operands it acts on.
namespace capstan::sdk {

/// A module of the model, with its own parameters.
struct ModelModule {
  struct Parameter {
    std::string name;  // "weight"
    std::vector<std::int64_t> shape;
    bool trained = true;
  };
  std::string path, class_name;  // "blocks.0.fc", "torch.nn.Linear"
  std::vector<Parameter> parameters;
  std::vector<Parameter> buffers;  // `trained` is false
  std::int64_t fused = 1;          // how many layers of one shape its rows are: 3 where q, k and v are one

  const Parameter* find(std::string_view name) const {
    for (const Parameter& parameter : parameters) {
      if (parameter.name == name) return &parameter;
    }
    return nullptr;
  }
  /// "blocks.0.fc.weight"
  std::string full_name(std::string_view parameter) const {
    return path.empty() ? std::string(parameter) : path + "." + std::string(parameter);
  }
};

/// What a compression is told of a model: its modules in the model's order. A tensor that several modules share stands
/// at the first of them.
struct ModelTable {
  std::vector<ModelModule> modules;
  std::uint64_t seed = 0;  // of the run: randomness must be a function of it, a name, an update and an element

  static ModelTable read(const Document& json) {
    ModelTable table;
    table.seed = static_cast<std::uint64_t>(json.number("seed"));
    table.modules.resize(json.size("modules"));
    for (std::size_t i = 0; i < table.modules.size(); ++i) {
      const std::string at = "/modules/" + std::to_string(i);
      ModelModule& module = table.modules[i];
      module.path = json.text(at + "/path");
      module.class_name = json.text(at + "/class");
      if (json.has(at + "/fused")) module.fused = static_cast<std::int64_t>(json.number(at + "/fused"));
      for (std::size_t k = 0; k < json.size(at + "/parameters"); ++k) {
        const std::string of = at + "/parameters/" + std::to_string(k);
        module.parameters.push_back(tensor(json, of, json.boolean(of + "/trained")));
      }
      for (std::size_t k = 0; k < json.size(at + "/buffers"); ++k) {
        module.buffers.push_back(tensor(json, at + "/buffers/" + std::to_string(k), false));
      }
    }
    return table;
  }

 private:
  static ModelModule::Parameter tensor(const Document& json, const std::string& of, bool trained) {
    ModelModule::Parameter made{json.text(of + "/name"), {}, trained};
    for (const double size : json.numbers(of + "/shape")) made.shape.push_back(static_cast<std::int64_t>(size));
    return made;
  }
};

/// How the numbers that measure() gives are joined over a group: the largest, the smallest, the sum.
enum class Join { kMax, kMin, kSum };

/// What a compression acts on.
struct CompressionPlan {
  /// Values that the engine keeps for a parameter, on the ranks and in checkpoints.
  struct State {
    /// One value an element of the parameter, where that is updated; 0 at first.
    static State of_elements(std::string name, Dtype dtype) { return {std::move(name), dtype, 0, {}, 0}; }
    /// `numel` values, the same on all ranks; 0 at first.
    static State whole(std::string name, Dtype dtype, std::uint64_t numel) {
      return {std::move(name), dtype, numel, {}, 0};
    }
    /// float32, trained by the optimizer in the parameter's group, under the module's path and `name`; uniform in
    /// [-bound, bound) at first. Of the parameter's own shape it has one value an element, else it is whole.
    static State trained(std::string name, std::vector<std::int64_t> shape, double bound) {
      return {std::move(name), Dtype::kFloat32, 0, std::move(shape), bound};
    }

    std::string name;
    Dtype dtype = Dtype::kUInt8;  // kUInt8 or kFloat32
    std::uint64_t numel = 0;
    std::vector<std::int64_t> shape;  // of a trained one
    double bound = 0;
  };
  struct Parameter {
    std::string name;                         // "blocks.0.fc.weight"
    std::uint64_t groups = 1;                 // of equal size; they must divide the elements
    std::vector<std::vector<Join>> measures;  // one list a round: a round knows what earlier ones measured
    int bits = 0;                             // of the codes that encode() gives, 1 to 8; 0: none
    bool zero_points = false;                 // whether a zero point may be other than 0
    std::vector<State> states;
    std::string states_of;  // the parameter whose whole states this one's pieces show as well
    bool gradient = false;  // gradient() is called for it
  };
  std::vector<Parameter> parameters;
  std::vector<std::string> operands;  // paths of modules
  std::vector<std::string> report;    // lines that a run begins with: "weight_quantization wq1: 12 of 50 modules, ..."
  std::vector<std::string> warnings;
  // By the path of an operand, the key of the configuration that names the module, for messages; may lack any.
  std::map<std::string, std::string> named_by;

  std::string json() const {
    static constexpr const char* kJoins[] = {"\"max\"", "\"min\"", "\"sum\""};
    std::string text = "{\"parameters\": [";
    for (const Parameter& one : parameters) {
      text += &one == parameters.data() ? "{\"name\": " : ", {\"name\": ";
      text += quoted(one.name) + ", \"groups\": " + std::to_string(one.groups);
      if (!one.measures.empty()) text += ", \"measures\": [";
      for (const auto& round : one.measures) {
        text += &round == one.measures.data() ? "[" : ", [";
        for (const Join& how : round) text += (&how == round.data() ? "" : ", ") + std::string(kJoins[int(how)]);
        text += "]";
      }
      if (!one.measures.empty()) text += "]";
      if (one.bits > 0) text += ", \"bits\": " + std::to_string(one.bits);
      if (one.zero_points) text += ", \"zero_points\": true";
      if (!one.states.empty()) text += ", \"states\": [";
      for (const State& state : one.states) text += (&state == one.states.data() ? "" : ", ") + json_of(state);
      if (!one.states.empty()) text += "]";
      if (!one.states_of.empty()) text += ", \"states_of\": " + quoted(one.states_of);
      if (one.gradient) text += ", \"gradient\": true";
      text += "}";
    }
    text += "], \"operands\": " + list(operands) + ", \"named_by\": {";
    std::size_t written = 0;
    for (const auto& [path, key] : named_by) text += (written++ ? ", " : "") + quoted(path) + ": " + quoted(key);
    return text + "}, \"report\": " + list(report) + ", \"warnings\": " + list(warnings) + "}";
  }

 private:
  static std::string json_of(const State& state) {
    std::string text = "{\"name\": " + quoted(state.name);
    if (state.shape.empty()) {
      text += std::string(", \"dtype\": ") + (state.dtype == Dtype::kFloat32 ? "\"float32\"" : "\"uint8\"");
      if (state.numel > 0) text += ", \"numel\": " + std::to_string(state.numel);
      return text + "}";
    }
    char bound[32];
    const auto end = std::to_chars(bound, bound + sizeof bound, state.bound).ptr;
    text += ", \"trained\": true, \"bound\": " + std::string(bound, end) + ", \"shape\": [";
    for (const std::int64_t& size : state.shape)
      text += (&size == state.shape.data() ? "" : ", ") + std::to_string(size);
    return text + "]}";
  }
  static std::string list(const std::vector<std::string>& texts) {
    std::string out = "[";
    for (const std::string& text : texts) out += (&text == texts.data() ? "" : ", ") + quoted(text);
    return out + "]";
  }

 public:
  /// A JSON string.
  static std::string quoted(std::string_view text) {
    std::string out = "\"";
    for (const char c : text) {
      constexpr const char* kDigits = "0123456789abcdef";
      if (static_cast<unsigned char>(c) < 0x20) {
        out += std::string("\\u00") + kDigits[(c >> 4) & 15] + kDigits[c & 15];
      } else {
        if (c == '"' || c == '\\') out += '\\';
        out += c;
      }
    }
    return out + "\"";
  }
};

}  // namespace capstan::sdk
