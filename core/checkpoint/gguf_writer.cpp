#include "core/checkpoint/gguf_writer.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <string_view>

#include "core/checkpoint/output_file.hpp"
#include "core/errors.hpp"

namespace capstan {
namespace {

constexpr std::uint32_t kVersion = 3;
constexpr std::uint64_t kAlignment = 32;
constexpr std::int64_t kReadAtOnce = 16 << 20;

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_text(std::string& out, std::string_view text) {
  put(out, static_cast<std::uint64_t>(text.size()));
  out += text;
}

void put_value(std::string& out, const std::string& file, const std::string& key, const Json& value) {
  put_text(out, key);
  if (value.is_integer() && value.as_integer() >= 0 &&
      value.as_integer() <= std::numeric_limits<std::uint32_t>::max()) {
    put(out, GgufValueType::kUint32);
    put(out, static_cast<std::uint32_t>(value.as_integer()));
  } else if (value.is_number() && !value.is_integer()) {
    put(out, GgufValueType::kFloat32);
    put(out, static_cast<float>(value.as_number()));
  } else if (value.is_bool()) {
    put(out, GgufValueType::kBool);
    put(out, static_cast<std::uint8_t>(value.as_bool()));
  } else if (value.is_string()) {
    put(out, GgufValueType::kString);
    put_text(out, value.as_string());
  } else {
    throw RuntimeFault("'" + file + "': metadata '" + key + "' is " + value.dump() +
                       ", and a number from 0 to 2^32 - 1, a text or a boolean is expected.");
  }
}

void put_entry(std::string& out, const GgufEntry& entry) {
  put_text(out, entry.key);
  put(out, entry.type);
  out += entry.value;
}

/// The first bytes of a file, up to its metadata.
std::string beginning(std::uint64_t tensors, std::uint64_t keys) {
  std::string out = "GGUF";
  put(out, kVersion);
  put(out, tensors);
  put(out, keys);
  return out;
}

std::uint64_t bytes_of(const GgufTensor& tensor) {
  return static_cast<std::uint64_t>(tensor.data.values.numel()) * tensor.data.values.element_size();
}

std::uint64_t padded(std::uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

void pad(OutputFile& out) {
  const std::uint64_t missing = padded(out.position()) - out.position();
  out.write(std::string(static_cast<std::size_t>(missing), '\0'));
}

void put_values(OutputFile& out, const SafetensorsEntry& entry) {
  if (!entry.read) {
    const at::Tensor values = entry.values.cpu().contiguous();
    return out.write(values.const_data_ptr(), values.nbytes());
  }
  const std::int64_t numel = entry.values.numel();
  const std::int64_t at_once = kReadAtOnce / static_cast<std::int64_t>(entry.values.element_size());
  for (std::int64_t from = 0; from < numel; from += at_once) {
    const at::Tensor piece = entry.read(from, std::min(at_once, numel - from));
    out.write(piece.const_data_ptr(), piece.nbytes());
  }
}

}  // namespace

GgufType gguf_type(at::ScalarType dtype, const std::string& tensor) {
  if (dtype == at::kFloat) return GgufType::kF32;
  if (dtype == at::kHalf) return GgufType::kF16;
  if (dtype == at::kBFloat16) return GgufType::kBF16;
  throw RuntimeFault("'" + tensor + "' is of type " + c10::toString(dtype) +
                     ", and GGUF files hold float32, float16 and bfloat16. Give --dtype float32.");
}

std::uint64_t write_gguf(const std::filesystem::path& file, const Json& metadata,
                         const std::vector<GgufTensor>& tensors, const std::vector<GgufEntry>& entries) {
  std::vector<GgufEntry> more;
  std::copy_if(entries.begin(), entries.end(), std::back_inserter(more),
               [&](const GgufEntry& entry) { return metadata.find(entry.key) == nullptr; });
  std::string header = beginning(tensors.size(), metadata.size() + more.size());
  for (const auto& [key, value] : metadata.as_object()) put_value(header, file.string(), key, value);
  for (const GgufEntry& entry : more) put_entry(header, entry);
  std::uint64_t offset = 0;
  for (const GgufTensor& tensor : tensors) {
    put_text(header, tensor.data.name);
    put(header, static_cast<std::uint32_t>(tensor.shape.size()));
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size) {
      put(header, static_cast<std::uint64_t>(*size));
    }
    put(header, tensor.type);
    put(header, offset);
    offset += padded(bytes_of(tensor));
  }
  OutputFile out(file);
  out.write(header);
  for (const GgufTensor& tensor : tensors) {
    pad(out);
    put_values(out, tensor.data);
  }
  pad(out);
  out.finish();
  return out.position();
}

std::string gguf_metadata_file(const std::vector<GgufEntry>& entries) {
  std::string out = beginning(0, entries.size());
  for (const GgufEntry& entry : entries) put_entry(out, entry);
  return out;
}

}  // namespace capstan
