#include "core/text/tokenizer/field.hpp"

#include <algorithm>

#include "core/errors.hpp"

namespace capstan::tokenizer {

void Field::fail(const std::string& message) const {
  throw RuntimeFault(file_ + ": " + (path_.empty() ? "" : path_ + ": ") + message);
}

void Field::expect(const char* type) const {
  fail(std::string("must be of type ") + type + ", and is of type " + value_->type_name() + ".");
}

Field Field::at(std::string_view key) const {
  object();
  if (const Json* found = value_->find(key)) {
    return {*found, file_, path_.empty() ? std::string(key) : path_ + "." + std::string(key)};
  }
  fail("has no member '" + std::string(key) + "'.");
}

std::optional<Field> Field::find(std::string_view key) const {
  object();
  const Json* found = value_->find(key);
  if (found == nullptr || found->is_null()) return std::nullopt;
  return at(key);
}

std::vector<Field> Field::items() const {
  std::vector<Field> all;
  for (std::size_t i = 0; i < array().size(); ++i) all.push_back(item(i));
  return all;
}

Field Field::item(std::size_t index) const {
  if (index >= array().size()) {
    fail("must have at least " + std::to_string(index + 1) + " elements, and has " + std::to_string(array().size()) +
         ".");
  }
  return {array()[index], file_, path_ + "[" + std::to_string(index) + "]"};
}

const std::string& Field::text() const {
  if (!value_->is_string()) expect("string");
  return value_->as_string();
}

bool Field::flag() const {
  if (!value_->is_bool()) expect("boolean");
  return value_->as_bool();
}

std::int64_t Field::integer() const {
  if (!value_->is_integer()) expect("integer");
  return value_->as_integer();
}

std::int32_t Field::id() const {
  const std::int64_t value = integer();
  if (value < 0 || value > kLargestId) {
    fail("the id of a token must be between 0 and " + std::to_string(kLargestId) + ", and is " + std::to_string(value) +
         ".");
  }
  return static_cast<std::int32_t>(value);
}

bool Field::flag(std::string_view key, bool otherwise) const {
  const auto found = find(key);
  return found ? found->flag() : otherwise;
}

std::string Field::text(std::string_view key, const std::string& otherwise) const {
  const auto found = find(key);
  return found ? found->text() : otherwise;
}

const std::string& Field::type(const char* what, std::initializer_list<const char*> known) const {
  const Field type = at("type");
  const std::string& name = type.text();
  if (std::any_of(known.begin(), known.end(), [&](const char* one) { return name == one; })) return name;
  std::string list;
  for (const char* one : known) list += (list.empty() ? "" : ", ") + std::string(one);
  type.fail("'" + name + "' is not " + what + " that Capstan supports: " + list + ".");
}

const Json::Array& Field::array() const {
  if (!value_->is_array()) expect("array");
  return value_->as_array();
}

const Json::Object& Field::object() const {
  if (!value_->is_object()) expect("object");
  return value_->as_object();
}

}  // namespace capstan::tokenizer
