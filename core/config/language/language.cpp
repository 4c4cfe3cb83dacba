#include "core/config/language/language.hpp"

#include <algorithm>
#include <stdexcept>

#include "core/config/language/tables/sections.hpp"
#include "core/schema/param_type.hpp"
#include "core/text/places.hpp"

namespace capstan {
namespace {

const KeyTable kTables[] = {
    {"Batch size", sections::batch()},
    {"Optimizer and schedule", sections::optimizer()},
    {"Communication", sections::communication()},
    {"Precision", sections::precision()},
    {"ZeRO", sections::zero()},
    {"Asynchronous input and output", sections::aio()},
    {"Logging and debugging", sections::logging()},
    {"Monitors", sections::monitors()},
    {"Profiling", sections::profiling()},
    {"Autotuning", sections::autotuning()},
    {"Activation checkpointing", sections::activation_checkpointing()},
    {"Sparse attention", sections::sparse_attention()},
    {"Data efficiency and curricula", sections::data_efficiency()},
    {"Compression", sections::compression()},
    {"Elasticity", sections::elasticity()},
    {"Checkpoints", sections::checkpoint()},
    {"Parallelism and execution", sections::parallelism()},
    {"Capstan", sections::capstan()},
};

[[noreturn]] void broken_table(const Key& key, const char* what) {
  throw std::logic_error(std::string("table of keys: ") + key.path + ": " + what);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const auto cut = text.find(separator);
    parts.push_back(text.substr(0, cut));
    if (cut == std::string_view::npos) return parts;
    text.remove_prefix(cut + 1);
  }
}

void set_types(KeySpec& spec, const Key& key) {
  const auto types = split(key.type, '|');
  const ParamType first = parse_param_type(std::string(types[0]));
  spec.type = first.type;
  spec.element = first.element;
  spec.length = first.length;
  for (std::size_t i = 1; i < types.size(); ++i) spec.also.push_back(parse_param_type(std::string(types[i])).type);
}

void set_bound(std::string_view text, std::optional<double>& bound, bool& exclusive) {
  exclusive = text.starts_with('<') || text.starts_with('>');
  if (exclusive) text.remove_prefix(1);
  bound = Json::parse(text).as_number();
}

void set_allowed(KeySpec& spec, const Key& key) {
  const std::string_view allowed = key.allowed;
  if (allowed.empty()) return;
  if (const auto dots = allowed.find(".."); dots != std::string_view::npos) {
    set_bound(allowed.substr(0, dots), spec.minimum, spec.exclusive_minimum);
    set_bound(allowed.substr(dots + 2), spec.maximum, spec.exclusive_maximum);
  } else if (allowed.starts_with(">= ")) {
    spec.minimum = Json::parse(allowed.substr(3)).as_number();
  } else if (allowed.starts_with("> ")) {
    spec.minimum = Json::parse(allowed.substr(2)).as_number();
    spec.exclusive_minimum = true;
  } else {
    const bool numbers = spec.type == KeySpec::Type::kInteger || spec.type == KeySpec::Type::kNumber;
    for (const auto choice : split(allowed, '|')) {
      if (!choice.empty()) spec.choices.push_back(numbers ? Json::parse(choice) : Json(choice));
    }
  }
}

KeySpec make_spec(const Key& key, std::string_view name) {
  KeySpec spec;
  spec.name = name;
  set_types(spec, key);
  set_allowed(spec, key);
  if (*key.fallback != '\0') spec.fallback = Json::parse(key.fallback);
  spec.nullable = (key.flags & kNullMeans) != 0;
  spec.required = (key.flags & kRequired) != 0;
  spec.any_case = (key.flags & kAnyCase) != 0;
  spec.exact_type = (key.flags & kExactType) != 0;
  spec.one_or_many = (key.flags & kOneOrMany) != 0;
  spec.summary = key.summary;
  return spec;
}

SchemaNode& descend(SchemaNode& parent, std::string_view name) {
  if (name == "[]") {
    if (!parent.element) parent.element = std::make_unique<SchemaNode>();
    parent.element->path = parent.path + "[]";
    return *parent.element;
  }
  std::unique_ptr<SchemaNode> fresh = std::make_unique<SchemaNode>();
  fresh->spec.name = name;
  fresh->spec.type = KeySpec::Type::kObject;
  fresh->path = join_path(parent.path, name);
  if (name.starts_with('<')) {
    if (!parent.any_member) parent.any_member = std::move(fresh);
    return *parent.any_member;
  }
  const auto found = std::find_if(parent.members.begin(), parent.members.end(),
                                  [&](const auto& member) { return member->spec.name == name; });
  if (found != parent.members.end()) return **found;
  parent.members.push_back(std::move(fresh));
  return *parent.members.back();
}

void add(SchemaNode& root, const Key& key) {
  SchemaNode* node = &root;
  std::string_view last;
  for (std::string_view part : split(key.path, '.')) {
    const bool element = part.ends_with("[]");
    if (element) part.remove_suffix(2);
    node = &descend(*node, part);
    if (element) node = &descend(*node, "[]");
    last = part;
  }
  if (node->key) broken_table(key, "stands there twice");
  node->key = &key;
  node->spec = make_spec(key, last);
}

std::unique_ptr<SchemaNode> make_language() {
  auto root = std::make_unique<SchemaNode>();
  root->spec.type = KeySpec::Type::kObject;
  for (const KeyTable& table : kTables) {
    for (const Key& key : table.keys) add(*root, key);
  }
  return root;
}

}  // namespace

std::span<const KeyTable> key_tables() { return kTables; }

const SchemaNode* SchemaNode::member(std::string_view name) const {
  for (const auto& candidate : members) {
    if (candidate->spec.name == name) return candidate.get();
  }
  return any_member.get();
}

const SchemaNode& language() {
  static const std::unique_ptr<SchemaNode> root = make_language();
  return *root;
}

const SchemaNode* find_key(std::string_view path) {
  const SchemaNode* node = &language();
  for (std::string_view part : split(path, '.')) {
    const auto bracket = part.find('[');
    node = node->member(part.substr(0, bracket));
    if (node && bracket != std::string_view::npos) node = node->element.get();
    if (!node) return nullptr;
  }
  return node;
}

}  // namespace capstan
