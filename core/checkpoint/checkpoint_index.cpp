#include "core/checkpoint/checkpoint_index.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "core/checkpoint/dtypes.hpp"
#include "core/checkpoint/nesting.hpp"
#include "core/errors.hpp"
#include "core/text/json.hpp"
#include "core/xxh3.hpp"

namespace capstan {
namespace {

constexpr const char* kFormat = "capstan checkpoint";
constexpr std::int64_t kVersion = 1;

// The text ends in a checksum of everything before it.
constexpr std::string_view kSealBegin = ",\n\"index_xxh3\": \"", kSealEnd = "\"\n}\n";
constexpr std::size_t kSealBytes = kSealBegin.size() + 16 + kSealEnd.size();

Json file_json(const IndexedFile& file) {
  Json json = Json::object();
  json["name"] = file.name;
  json["bytes"] = file.bytes;
  json["header_bytes"] = file.header_bytes;
  json["header_xxh3"] = hex(file.header_xxh3);
  return json;
}

Json tensor_json(const IndexedTensor& tensor) {
  Json json = Json::object();
  json["parameter"] = tensor.parameter;
  json["state"] = tensor.state;
  json["dtype"] = safetensors_dtype(tensor.type);
  json["shape"] = Json(Json::Array(tensor.shape.begin(), tensor.shape.end()));
  json["offset"] = tensor.offset;
  json["numel"] = tensor.numel;
  json["file"] = tensor.file;
  json["name"] = tensor.name;
  json["begin"] = tensor.begin;
  json["end"] = tensor.end;
  json["xxh3"] = hex(tensor.xxh3);
  return json;
}

template <class Items, class ToJson>
std::string list_text(const Items& items, ToJson to_json) {
  std::string text = "[";
  for (const auto& item : items) text += (text.size() > 1 ? ",\n  " : "\n  ") + to_json(item).dump();
  return text + "\n]";
}

/// Typed members of one object of the index.
class Members {
 public:
  Members(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json.is_object()) fail("an object is needed here.");
  }

  [[noreturn]] void fail(const std::string& defect) const { throw RuntimeFault(where_ + ": " + defect); }

  const std::string& text(const char* key) const { return member(key, &Json::is_string, "text").as_string(); }
  const Json::Array& array(const char* key) const { return member(key, &Json::is_array, "a list").as_array(); }
  const Json& object(const char* key) const { return member(key, &Json::is_object, "an object"); }

  /// The name of a file in the index's own folder: a path could lead out of the folder.
  const std::string& file_name(const char* key) const {
    const std::string& name = text(key);
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
      fail(std::string(key) + " '" + name + "' is not the name of a file in the checkpoint's folder.");
    }
    return name;
  }

  std::int64_t count(const char* key) const { return count(member(key, &Json::is_integer, "an integer"), key); }
  std::uint64_t bytes(const char* key) const { return static_cast<std::uint64_t>(count(key)); }

  std::uint64_t digest(const char* key) const {
    const std::string& digits = text(key);
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (digits.size() != 16 || error != std::errc() || end != digits.data() + 16) {
      fail(std::string(key) + " is not a checksum of 16 hexadecimal digits.");
    }
    return value;
  }

  std::vector<std::int64_t> sizes(const char* key) const {
    std::vector<std::int64_t> out;
    for (const auto& item : array(key)) out.push_back(count(item, key));
    return out;
  }

 private:
  const Json& member(const char* key, bool (Json::*is)() const, const char* kind) const {
    const Json* found = json_.find(key);
    if (!found || !(found->*is)()) fail(std::string(key) + " is missing or not " + kind + ".");
    return *found;
  }

  std::int64_t count(const Json& value, const char* key) const {
    if (!value.is_integer() || value.as_integer() < 0) fail(std::string(key) + " holds something else than a count.");
    return value.as_integer();
  }

  const Json& json_;
  std::string where_;
};

IndexedTensor parse_tensor(const Members& members) {
  IndexedTensor tensor;
  tensor.parameter = members.text("parameter");
  tensor.state = members.text("state");
  const auto type = scalar_type_of(members.text("dtype"));
  if (!type) members.fail("dtype '" + members.text("dtype") + "' is not known here.");
  tensor.type = *type;
  tensor.shape = members.sizes("shape");
  tensor.offset = members.count("offset");
  tensor.numel = members.count("numel");
  tensor.file = members.file_name("file");
  tensor.name = members.text("name");
  tensor.begin = members.bytes("begin");
  tensor.end = members.bytes("end");
  tensor.xxh3 = members.digest("xxh3");
  const std::int64_t all = elements_of(tensor.shape);
  if (all < 0) members.fail("its shape is too large.");
  if (tensor.offset > all || tensor.numel > all - tensor.offset) members.fail("its range exceeds its shape.");
  return tensor;
}

/// The JSON without the seal. Throws when the seal is broken.
std::string unsealed(std::string_view text, const std::string& where) {
  if (text.size() > kSealBytes && text.ends_with(kSealEnd)) {
    const std::string_view body = text.substr(0, text.size() - kSealBytes);
    const std::string_view seal = text.substr(body.size(), kSealBytes - kSealEnd.size());
    if (seal == std::string(kSealBegin) + hex(xxh3(body.data(), body.size()))) return std::string(body) + "\n}\n";
  }
  throw RuntimeFault(where + ": it is damaged: it does not match its own checksum.");
}

}  // namespace

std::int64_t elements_of(const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1, span = 1;
  for (const std::int64_t size : shape) {
    // As if a size of 0 were 1: LibTorch's strides must fit as well. 16 bytes is the largest element.
    if (__builtin_mul_overflow(span, std::max<std::int64_t>(size, 1), &span) || span > INT64_MAX / 16) return -1;
    elements *= size;
  }
  return elements;
}

std::string index_text(const CheckpointIndex& index) {
  Json state = Json::object();
  state["name"] = "state.json";
  state["bytes"] = index.state_bytes;
  state["xxh3"] = hex(index.state_xxh3);
  std::string text = "{\n\"format\": " + Json(kFormat).dump() + ",\n\"version\": " + Json(kVersion).dump() +
                     ",\n\"tag\": " + Json(index.tag).dump() + ",\n\"state\": " + state.dump() +
                     ",\n\"files\": " + list_text(index.files, file_json) +
                     ",\n\"tensors\": " + list_text(index.tensors, tensor_json);
  const std::string digest = hex(xxh3(text.data(), text.size()));
  return text.append(kSealBegin).append(digest).append(kSealEnd);
}

CheckpointIndex parse_index_part(std::string_view text, const std::string& where) {
  const std::string body = unsealed(text, where);
  if (nested_deeper_than(body, 16)) throw RuntimeFault(where + ": its lists nest too deep.");
  Json json;
  try {
    json = Json::parse(body);
  } catch (const ConfigError& error) {
    throw RuntimeFault(where + ": " + error.what());
  }
  const Members top(json, where);
  if (top.text("format") != kFormat)
    top.fail("it is the index of something else: format '" + top.text("format") + "'.");
  if (top.count("version") != kVersion) {
    top.fail("it is of version " + std::to_string(top.count("version")) + "; this program reads version " +
             std::to_string(kVersion) + ". Use the release that wrote it, or a newer one.");
  }
  CheckpointIndex index;
  index.tag = top.text("tag");
  const Members state(top.object("state"), where + ", state");
  index.state_bytes = state.bytes("bytes");
  index.state_xxh3 = state.digest("xxh3");
  for (const auto& item : top.array("files")) {
    const Members file(item, where + ", files[" + std::to_string(index.files.size()) + "]");
    index.files.push_back(
        {file.file_name("name"), file.bytes("bytes"), file.bytes("header_bytes"), file.digest("header_xxh3")});
  }
  for (const auto& item : top.array("tensors")) {
    index.tensors.push_back(
        parse_tensor(Members(item, where + ", tensors[" + std::to_string(index.tensors.size()) + "]")));
  }
  return index;
}

void check_ranges(const std::vector<IndexedTensor>& tensors, const std::string& where) {
  std::map<std::pair<std::string, std::string>, std::vector<const IndexedTensor*>> parts;
  for (const auto& tensor : tensors) parts[{tensor.parameter, tensor.state}].push_back(&tensor);
  for (auto& [key, ranges] : parts) {
    std::sort(ranges.begin(), ranges.end(), [](const auto* a, const auto* b) {
      return std::pair(a->offset, a->numel) < std::pair(b->offset, b->numel);
    });
    const std::string name = where + ": " + key.second + " of '" + key.first + "': ";
    std::int64_t position = 0;
    for (const auto* range : ranges) {
      if (range->shape != ranges.front()->shape || range->type != ranges.front()->type) {
        throw RuntimeFault(name + "its parts disagree about shape or dtype.");
      }
      if (range->offset != position) {
        throw RuntimeFault(name + "elements " + std::to_string(std::min(position, range->offset)) + " to " +
                           std::to_string(std::max(position, range->offset)) +
                           (range->offset > position ? " are in no file." : " are there twice."));
      }
      position += range->numel;
    }
    const std::int64_t all = elements_of(ranges.front()->shape);
    if (position != all || (all == 0 && ranges.size() != 1)) {
      throw RuntimeFault(name + "elements " + std::to_string(position) + " to " + std::to_string(all) +
                         " are in no file.");
    }
  }
}

CheckpointIndex parse_index(std::string_view text, const std::string& where) {
  CheckpointIndex index = parse_index_part(text, where);
  check_ranges(index.tensors, where);
  return index;
}

}  // namespace capstan
