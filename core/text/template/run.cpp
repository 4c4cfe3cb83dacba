#include "core/text/template/run.hpp"

#include <algorithm>

#include "core/text/template/limits.hpp"

namespace capstan::text_template {

void Scope::set(const std::string& name, Value value) {
  const auto found =
      std::find_if(variables_.begin(), variables_.end(), [&](const auto& one) { return one.first == name; });
  if (found != variables_.end()) {
    found->second = std::move(value);
  } else {
    variables_.emplace_back(name, std::move(value));
  }
}

const Value* Scope::find(const std::string& name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->around_) {
    for (const auto& [of, value] : scope->variables_) {
      if (of == name) return &value;
    }
  }
  return nullptr;
}

void Run::step(std::size_t count) {
  steps += count;
  if (steps > kMostSteps) throw TemplateError("rendering takes more than " + std::to_string(kMostSteps) + " steps.");
}

Evaluating::Evaluating(Run& run) : run_(run) {
  run.step();
  if (run.depth >= kDeepestValues) {
    throw TemplateError("more than " + std::to_string(kDeepestValues) + " expressions wait for each other's values.");
  }
  ++run.depth;
}

void Run::write(std::string_view text) {
  check_size(out->size() + text.size());
  *out += text;
}

void check_size(std::size_t bytes) {
  if (bytes > kLongestText) throw TemplateError("a text is longer than " + std::to_string(kLongestText) + " bytes.");
}

void check_items(std::size_t items) {
  if (items > kMostItems) throw TemplateError("a list has more than " + std::to_string(kMostItems) + " elements.");
}

Flow Block::render(Run& run) const {
  for (const auto& statement : statements) {
    run.step();
    run.line = statement->line;
    if (const Flow flow = statement->render(run); flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

std::string Block::capture(Run& run) const {
  std::string text;
  std::string* const before = std::exchange(run.out, &text);
  render(run);
  run.out = before;
  return text;
}

}  // namespace capstan::text_template
