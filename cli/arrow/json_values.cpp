#include "cli/arrow/json_values.hpp"

#include <arrow/util/float16.h>

#include <charconv>
#include <cmath>
#include <string_view>

namespace capstan::cli {
namespace {

using arrow::Array;
using arrow::Status;
using arrow::Type;

template <class T>
void append_number(T number, std::string& out) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  out.append(digits, end);
}

template <class T>
Status append_fraction(T number, std::string& out) {
  if (!std::isfinite(number)) return Status::Invalid("holds ", number, ", and JSON has finite numbers only");
  const std::size_t begin = out.size();
  append_number(number, out);
  // Python and Jinja tell 3.0 from 3.
  if (out.find_first_of(".e", begin) == std::string::npos) out += ".0";
  return Status::OK();
}

template <class A>
Status append_text(const Array& values, std::int64_t index, std::string& out) {
  append_json_text(static_cast<const A&>(values).GetView(index), out);
  return Status::OK();
}

template <class A>
Status append_whole(const Array& values, std::int64_t index, std::string& out) {
  append_number(static_cast<const A&>(values).Value(index), out);
  return Status::OK();
}

template <class A>
Status append_list(const Array& values, std::int64_t index, std::string& out) {
  const auto& list = static_cast<const A&>(values);
  const Array& items = *list.values();
  const std::int64_t begin = list.value_offset(index), end = begin + list.value_length(index);
  out += '[';
  for (std::int64_t i = begin; i < end; ++i) {
    if (i > begin) out += ',';
    ARROW_RETURN_NOT_OK(append_json(items, i, out));
  }
  out += ']';
  return Status::OK();
}

Status append_struct(const Array& values, std::int64_t index, std::string& out) {
  const auto& rows = static_cast<const arrow::StructArray&>(values);
  bool is_first = true;
  out += '{';
  for (int i = 0; i < rows.num_fields(); ++i) {
    const std::shared_ptr<Array> field = rows.field(i);  // with the offset of a slice
    if (field->IsNull(index)) continue;
    if (!is_first) out += ',';
    is_first = false;
    append_json_text(rows.type()->field(i)->name(), out);
    out += ':';
    ARROW_RETURN_NOT_OK(append_json(*field, index, out));
  }
  out += '}';
  return Status::OK();
}

Status append_map(const Array& values, std::int64_t index, std::string& out) {
  const auto& map = static_cast<const arrow::MapArray&>(values);
  const std::int64_t begin = map.value_offset(index), end = begin + map.value_length(index);
  out += '{';
  for (std::int64_t i = begin; i < end; ++i) {
    if (i > begin) out += ',';
    ARROW_RETURN_NOT_OK(append_json(*map.keys(), i, out));
    out += ':';
    ARROW_RETURN_NOT_OK(append_json(*map.items(), i, out));
  }
  out += '}';
  return Status::OK();
}

bool is_text(const arrow::DataType& type) {
  return type.id() == Type::STRING || type.id() == Type::LARGE_STRING || type.id() == Type::STRING_VIEW;
}

}  // namespace

Status check_json_type(const arrow::DataType& type) {
  switch (type.id()) {
    case Type::DICTIONARY:
      return check_json_type(*static_cast<const arrow::DictionaryType&>(type).value_type());
    case Type::EXTENSION:
      return check_json_type(*static_cast<const arrow::ExtensionType&>(type).storage_type());
    case Type::MAP: {
      const auto& map = static_cast<const arrow::MapType&>(type);
      if (!is_text(*map.key_type()))
        return Status::TypeError("is of type ", type.ToString(), ", whose keys are no texts");
      return check_json_type(*map.item_type());
    }
    case Type::LIST:
    case Type::LARGE_LIST:
    case Type::FIXED_SIZE_LIST:
    case Type::LIST_VIEW:
    case Type::LARGE_LIST_VIEW:
    case Type::STRUCT:
      for (const auto& field : type.fields()) {
        const Status inner = check_json_type(*field->type());
        if (!inner.ok()) return Status::TypeError("has the member \"", field->name(), "\", which ", inner.message());
      }
      return Status::OK();
    case Type::BINARY:
    case Type::LARGE_BINARY:
    case Type::BINARY_VIEW:
    case Type::FIXED_SIZE_BINARY:
      return Status::TypeError("is of type ", type.ToString(), ", bytes that need not be text; cast it to string");
    case Type::SPARSE_UNION:
    case Type::DENSE_UNION:
    case Type::RUN_END_ENCODED:
      return Status::TypeError("is of type ", type.ToString(), ", which is not supported");
    default:
      return Status::OK();
  }
}

Status append_json(const Array& values, std::int64_t index, std::string& out) {
  if (values.IsNull(index)) {
    out += "null";
    return Status::OK();
  }
  switch (values.type_id()) {
    case Type::STRING:
      return append_text<arrow::StringArray>(values, index, out);
    case Type::LARGE_STRING:
      return append_text<arrow::LargeStringArray>(values, index, out);
    case Type::STRING_VIEW:
      return append_text<arrow::StringViewArray>(values, index, out);
    case Type::BOOL:
      out += static_cast<const arrow::BooleanArray&>(values).Value(index) ? "true" : "false";
      return Status::OK();
    case Type::INT8:
      return append_whole<arrow::Int8Array>(values, index, out);
    case Type::INT16:
      return append_whole<arrow::Int16Array>(values, index, out);
    case Type::INT32:
      return append_whole<arrow::Int32Array>(values, index, out);
    case Type::INT64:
      return append_whole<arrow::Int64Array>(values, index, out);
    case Type::UINT8:
      return append_whole<arrow::UInt8Array>(values, index, out);
    case Type::UINT16:
      return append_whole<arrow::UInt16Array>(values, index, out);
    case Type::UINT32:
      return append_whole<arrow::UInt32Array>(values, index, out);
    case Type::UINT64:
      return append_whole<arrow::UInt64Array>(values, index, out);
    case Type::HALF_FLOAT: {
      const std::uint16_t bits = static_cast<const arrow::HalfFloatArray&>(values).Value(index);
      return append_fraction(arrow::util::Float16::FromBits(bits).ToFloat(), out);
    }
    case Type::FLOAT:
      return append_fraction(static_cast<const arrow::FloatArray&>(values).Value(index), out);
    case Type::DOUBLE:
      return append_fraction(static_cast<const arrow::DoubleArray&>(values).Value(index), out);
    case Type::LIST:
      return append_list<arrow::ListArray>(values, index, out);
    case Type::LARGE_LIST:
      return append_list<arrow::LargeListArray>(values, index, out);
    case Type::FIXED_SIZE_LIST:
      return append_list<arrow::FixedSizeListArray>(values, index, out);
    case Type::LIST_VIEW:
      return append_list<arrow::ListViewArray>(values, index, out);
    case Type::LARGE_LIST_VIEW:
      return append_list<arrow::LargeListViewArray>(values, index, out);
    case Type::STRUCT:
      return append_struct(values, index, out);
    case Type::MAP:
      return append_map(values, index, out);
    case Type::DICTIONARY: {
      const auto& coded = static_cast<const arrow::DictionaryArray&>(values);
      return append_json(*coded.dictionary(), coded.GetValueIndex(index), out);
    }
    case Type::EXTENSION:
      return append_json(*static_cast<const arrow::ExtensionArray&>(values).storage(), index, out);
    default: {
      // Times, decimals and the like.
      ARROW_ASSIGN_OR_RAISE(const auto scalar, values.GetScalar(index));
      append_json_text(scalar->ToString(), out);
      return Status::OK();
    }
  }
}

void append_json_text(std::string_view text, std::string& out) {
  constexpr const char* kHex = "0123456789abcdef";
  out += '"';
  std::size_t plain = 0;  // where the bytes begin that need no escape
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
    out.append(text, plain, i - plain);
    plain = i + 1;
    if (byte == '"' || byte == '\\') {
      out += '\\';
      out += text[i];
    } else {
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  out.append(text, plain, text.size() - plain);
  out += '"';
}

}  // namespace capstan::cli
