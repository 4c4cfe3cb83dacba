#include "core/text/template/statements.hpp"

#include <algorithm>

#include "core/text/template/limits.hpp"

namespace capstan::text_template {
namespace {

/// Makes a scope that of what is rendered, and puts the old one back.
class Entered {
 public:
  Entered(Run& run, Scope& scope) : run_(run), before_(std::exchange(run.scope, &scope)) {}
  ~Entered() { run_.scope = before_; }
  Entered(const Entered&) = delete;

 private:
  Run& run_;
  Scope* before_;
};

/// The variable `loop` for element `at`.
Value loop_facts(const List& items, std::size_t at) {
  const auto index = static_cast<std::int64_t>(at), size = static_cast<std::int64_t>(items.size());
  return Dict{{"index", index + 1},
              {"index0", index},
              {"revindex", size - index},
              {"revindex0", size - index - 1},
              {"first", at == 0},
              {"last", at + 1 == items.size()},
              {"length", size},
              {"previtem", at > 0 ? items[at - 1] : Value()},
              {"nextitem", at + 1 < items.size() ? items[at + 1] : Value()}};
}

}  // namespace

Flow TextStatement::render(Run& run) const {
  run.write(text_);
  return Flow::kNext;
}

Flow Output::render(Run& run) const {
  run.write(value_->evaluate(run).text());
  return Flow::kNext;
}

void Target::assign(Run& run, const Value& value) const {
  if (!member.empty()) {
    const Value* space = run.scope->find(names[0]);
    if (space == nullptr || space->space() == nullptr) {
      throw TemplateError("'" + names[0] + "." + member + "' cannot be set: '" + names[0] + "' is not a namespace.");
    }
    if (value.space() != nullptr) throw TemplateError("a namespace cannot be put into another value.");
    Dict& members = space->space()->members;
    const auto same =
        std::find_if(members.begin(), members.end(), [&](const auto& one) { return one.first == Value(member); });
    if (same != members.end()) {
      same->second = value;
    } else {
      members.emplace_back(member, value);
    }
    return;
  }
  if (names.size() == 1) return run.scope->set(names[0], value);
  const List parts = value.items();
  if (parts.size() != names.size()) {
    throw TemplateError(std::to_string(parts.size()) + " values are given to " + std::to_string(names.size()) +
                        " names.");
  }
  for (std::size_t i = 0; i < names.size(); ++i) run.scope->set(names[i], parts[i]);
}

Flow Set::render(Run& run) const {
  target_.assign(run, value_ ? value_->evaluate(run) : Value(body_->capture(run)));
  return Flow::kNext;
}

Flow If::render(Run& run) const {
  for (const auto& [condition, body] : branches_) {
    if (!condition || condition->evaluate(run).truth()) return body->render(run);
  }
  return Flow::kNext;
}

List For::kept_items(Run& run, Scope& scope) const {
  const Value over = over_->evaluate(run);
  run.step(over.is_string() ? over.string().size() : over.weight());
  List items = over.items();
  if (!condition_) return items;
  const Entered entered(run, scope);
  std::erase_if(items, [&](const Value& item) {
    target_.assign(run, item);
    return !condition_->evaluate(run).truth();
  });
  return items;
}

Flow For::render(Run& run) const {
  Scope names(run.scope);
  const List items = kept_items(run, names);
  if (items.empty()) return otherwise_ ? otherwise_->render(run) : Flow::kNext;
  for (std::size_t i = 0; i < items.size(); ++i) {
    run.step();
    Scope scope(run.scope);  // what an iteration sets ends with it
    const Entered entered(run, scope);
    target_.assign(run, items[i]);
    scope.set("loop", loop_facts(items, i));
    if (body_->render(run) == Flow::kBreak) break;
  }
  return Flow::kNext;
}

Flow Macro::render(Run& run) const {
  run.scope->set(name_, Value(Function([this, &run](const Arguments& arguments) { return call(run, arguments); })));
  return Flow::kNext;
}

Value Macro::call(Run& run, const Arguments& arguments) const {
  if (++run.calls > kDeepestCalls) {
    throw TemplateError("more than " + std::to_string(kDeepestCalls) + " macros call each other.");
  }
  if (arguments.positional.size() > parameters_.size()) {
    throw TemplateError("macro '" + name_ + "' takes " + std::to_string(parameters_.size()) + " arguments, and got " +
                        std::to_string(arguments.positional.size()) + ".");
  }
  for (const auto& [given, value] : arguments.named) {
    const bool known = std::any_of(parameters_.begin(), parameters_.end(),
                                   [&, &of = given](const Parameter& one) { return one.name == of; });
    if (!known) throw TemplateError("macro '" + name_ + "' has no argument '" + given + "'.");
  }
  Scope scope(&run.root);
  const Entered entered(run, scope);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Value value = arguments.get(i, parameters_[i].name);
    if (value.is_undefined() && parameters_[i].otherwise) value = parameters_[i].otherwise->evaluate(run);
    scope.set(parameters_[i].name, std::move(value));
  }
  const int line = run.line;
  std::string text = body_->capture(run);
  run.line = line;
  --run.calls;
  return text;
}

Flow Generation::render(Run& run) const {
  if (run.out != &run.result.text) {
    throw TemplateError("{% generation %} stands within a macro or {% set %}, where its place is not known.");
  }
  const std::size_t begin = run.result.text.size();
  const Flow flow = body_->render(run);
  run.result.generated.emplace_back(begin, run.result.text.size());
  return flow;
}

}  // namespace capstan::text_template
