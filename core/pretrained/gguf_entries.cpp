#include "core/pretrained/gguf_entries.hpp"

namespace capstan {
namespace {

template <class T>
void put_raw(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// The head of an array: the type of its elements, and how many there are.
std::string array_head(GgufValueType type, std::size_t count) {
  std::string out;
  put_raw(out, static_cast<std::uint32_t>(type));
  put_raw(out, static_cast<std::uint64_t>(count));
  return out;
}

template <class T>
std::string array_of(GgufValueType type, const std::vector<T>& numbers) {
  std::string out = array_head(type, numbers.size());
  out.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T));
  return out;
}

}  // namespace

void GgufEntries::add(const std::string& key, const std::vector<std::string>& texts) {
  std::string value = array_head(GgufValueType::kString, texts.size());
  for (const std::string& text : texts) {
    put_raw(value, static_cast<std::uint64_t>(text.size()));
    value += text;
  }
  owned_.push_back({key, std::move(value), texts.size()});
}

void GgufEntries::add(const std::string& key, const std::vector<std::int32_t>& numbers) {
  owned_.push_back({key, array_of(GgufValueType::kInt32, numbers), numbers.size()});
}

void GgufEntries::add(const std::string& key, const std::vector<float>& numbers) {
  owned_.push_back({key, array_of(GgufValueType::kFloat32, numbers), numbers.size()});
}

std::vector<GgufEntry> GgufEntries::all() const {
  std::vector<GgufEntry> entries;
  for (const Owned& one : owned_) entries.push_back({one.key, GgufValueType::kArray, one.value, one.elements});
  return entries;
}

}  // namespace capstan
