#include "core/config/resolve/effective.hpp"

#include <utility>

#include "core/text/places.hpp"

namespace capstan {

namespace {

void add_all(const Json& value, const std::string& path, ConsumedKeys& to) {
  to.insert(path);
  if (!value.is_object()) return;
  for (const auto& [name, member] : value.as_object()) add_all(member, join_path(path, name), to);
}

}  // namespace

const Json* Effective::find(std::string_view path) const {
  if (consumed_) consumed_->emplace(path);
  const Json* at = &values_;
  while (at && !path.empty()) {
    const auto dot = path.find('.');
    at = at->find(path.substr(0, dot));
    path = dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
  }
  return at;
}

bool Effective::flag(std::string_view path) const {
  const Json* value = find(path);
  return value && value->is_bool() && value->as_bool();
}

std::int64_t Effective::integer(std::string_view path, std::int64_t otherwise) const {
  const Json* value = find(path);
  return value && value->is_integer() ? value->as_integer() : otherwise;
}

double Effective::number(std::string_view path, double otherwise) const {
  const Json* value = find(path);
  return value && value->is_number() ? value->as_number() : otherwise;
}

std::string Effective::text(std::string_view path) const {
  const Json* value = find(path);
  return value && value->is_string() ? value->as_string() : "";
}

void Effective::consume(const std::string& path) const {
  if (!consumed_) return;
  if (const Json* value = find(path)) add_all(*value, path, *consumed_);
}

bool Effective::given(const std::string& path) const {
  const auto found = origins_.find(path);
  return found != origins_.end() &&
         (found->second == "file" || found->second == "program" || found->second == "command line");
}

void Effective::derive(const std::string& path, Json value) {
  set_path(values_, path, std::move(value));
  origins_[path] = "derived";
}

void set_path(Json& document, std::string_view path, Json value) {
  Json* at = &document;
  for (auto dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.')) {
    at = &(*at)[path.substr(0, dot)];
    if (!at->is_object()) *at = Json::object();
    path.remove_prefix(dot + 1);
  }
  (*at)[path] = std::move(value);
}

}  // namespace capstan
