#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/schema/schema.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// An expression about the parameters of one component, as the `rules` of a manifest have it:
/// "warmup <= total and (torch_adam or not amsgrad)". docs/reference/plugins/manifest.md has the grammar.
///
/// Immutable; copies share the parsed tree.
class ParamExpression {
 public:
  enum class Kind { kBoolean, kNumber, kText, kList, kAny };

  struct Node;

  /// Throws std::invalid_argument, whose text says what is wrong and at which character, for an expression that cannot
  /// be read, names a parameter that `specs` do not have, or compares values of types that have nothing in common.
  static ParamExpression parse(std::string_view text, const std::vector<KeySpec>& specs);

  /// The value for these parameters; nothing where it depends on a parameter that has no value, or cannot be computed.
  std::optional<Json> evaluate(const Json& params) const;
  bool is_set() const { return root_ != nullptr; }  // an expression that was made by parse()
  /// The type of its values.
  Kind kind() const;
  /// The parameters that it names, in the order of the text; one may stand there twice.
  const std::vector<std::string>& names() const { return names_; }

 private:
  friend class ParamParser;

  std::shared_ptr<const Node> root_;
  std::vector<std::string> names_;
};

/// A part of an expression and what it works on.
struct ParamExpression::Node {
  /// One letter or two for what is written with signs, else the word: "<=", "and", "given".
  std::string operation;       // "value", "name", "[]", "given", "not", "minus", or a binary operator as it is written
  Kind kind = Kind::kAny;      // of the result
  Json value;                  // "value": itself
  std::string name;            // "name", "[]", "given": the parameter
  std::size_t index = 0;       // "[]": of the element
  std::vector<Node> operands;  // none, one or two

  std::optional<Json> evaluate(const Json& params) const;

 private:
  std::optional<Json> parameter(const Json& params) const;
  std::optional<Json> logic(const Json& params) const;
};

}  // namespace capstan
