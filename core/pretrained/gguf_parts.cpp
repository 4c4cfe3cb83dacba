#include "core/pretrained/gguf_parts.hpp"

#include <cstdio>
#include <optional>
#include <set>
#include <utility>

#include "core/errors.hpp"

namespace capstan {
namespace {

constexpr std::int64_t kMostParts = 99'999;  // the names have five digits

std::int64_t number_of(const GgufHeader& header, const char* key, std::int64_t otherwise) {
  const GgufEntry* entry = header.find(key);
  return entry == nullptr ? otherwise : entry->integer().value_or(-1);
}

/// "-00002-of-00003.gguf"
std::string ending(std::int64_t number, std::int64_t count) {
  char text[64];
  std::snprintf(text, sizeof text, "-%05lld-of-%05lld.gguf", static_cast<long long>(number),
                static_cast<long long>(count));
  return text;
}

}  // namespace

std::vector<std::filesystem::path> further_gguf_parts(const GgufHeader& first, const std::filesystem::path& file) {
  const std::int64_t count = number_of(first, "split.count", 1);
  if (count == 0 || count == 1) return {};
  const std::string where = "'" + file.string() + "': ";
  const std::int64_t number = number_of(first, "split.no", 0);
  if (count < 0 || count > kMostParts || number < 0 || number >= count) {
    throw RuntimeFault(where + "its split.no and split.count do not tell which of several files it is.");
  }
  const std::string name = file.filename().string(), end = ending(number + 1, count);
  if (!name.ends_with(end)) {
    throw RuntimeFault(where + "it is part " + std::to_string(number + 1) + " of " + std::to_string(count) +
                       " of a model (split.count), and its name must end with " + end + " for the others to be found.");
  }
  const std::string stem = name.substr(0, name.size() - end.size());
  if (number > 0) {
    throw RuntimeFault(where + "it is part " + std::to_string(number + 1) + " of a model. Name the first part, " +
                       stem + ending(1, count) + ".");
  }
  std::vector<std::filesystem::path> parts;
  for (std::int64_t i = 1; i < count; ++i) parts.push_back(file.parent_path() / (stem + ending(i + 1, count)));
  return parts;
}

void join_gguf_part(GgufHeader& first, GgufHeader part, std::size_t number, std::size_t count,
                    const std::string& where) {
  if (number_of(part, "split.no", -1) != static_cast<std::int64_t>(number) ||
      number_of(part, "split.count", -1) != static_cast<std::int64_t>(count)) {
    throw RuntimeFault(where + ": it is not part " + std::to_string(number + 1) + " of " + std::to_string(count) +
                       ", as its name says (split.no, split.count).");
  }
  std::set<std::string> names;
  for (const GgufTensorInfo& tensor : first.tensors) names.insert(tensor.name);
  for (GgufTensorInfo& tensor : part.tensors) {
    if (names.contains(tensor.name)) {
      throw RuntimeFault(where + ": tensor '" + tensor.name.substr(0, 100) + "' is in an earlier part too.");
    }
    tensor.part = number;
    first.tensors.push_back(std::move(tensor));
  }
}

void check_gguf_parts(const GgufHeader& header, const std::string& where) {
  const auto found = static_cast<std::int64_t>(header.tensors.size());
  const std::int64_t told = number_of(header, "split.tensors.count", found);
  if (told == found) return;
  throw RuntimeFault(where + ": its parts hold " + std::to_string(found) + " tensors, and the model has " +
                     std::to_string(told) + " (split.tensors.count).");
}

}  // namespace capstan
