#pragma once

#include <string>
#include <string_view>

#include "core/text/template/value.hpp"

namespace capstan::text_template {

/// Applies `value | name(arguments)`. Throws TemplateError for a filter that is not known.
Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments);
bool knows_filter(const std::string& name);

/// `value is name(arguments)`.
bool passes_test(const std::string& name, const Value& value, const Arguments& arguments);
bool knows_test(const std::string& name);

/// `value.name(arguments)` for a string or a dictionary; undefined where the type has no such method.
Value method_of(const Value& value, const std::string& name);

/// `value.name` and `value[key]`: a member, an element, a method; undefined where there is none.
Value attribute_of(const Value& value, const std::string& name);
Value element_of(const Value& value, const Value& key);

/// The functions of every template: namespace, range, dict, raise_exception, strftime_now; null for other names.
const Value* global_of(const std::string& name);

/// White space as str.strip() and str.split() of Python have it.
bool is_space(char32_t character);
/// A string as str.strip() of Python gives it. Without `characters` white space is stripped.
std::string stripped(std::string_view text, bool left, bool right, std::string_view characters = {});

/// The value at a dotted path; undefined where a part is missing.
Value path_of(const Value& value, const std::string& path);

}  // namespace capstan::text_template
