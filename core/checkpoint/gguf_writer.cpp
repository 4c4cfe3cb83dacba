#include "core/checkpoint/gguf_writer.hpp"

#include <algorithm>
#include <limits>

#include "core/checkpoint/output_file.hpp"
#include "core/errors.hpp"

namespace capstan {
namespace {

constexpr std::uint32_t kVersion = 3;
constexpr std::uint64_t kAlignment = 32;
constexpr std::int64_t kReadAtOnce = 16 << 20;
constexpr std::uint32_t kUint32 = 4, kFloat32 = 6, kBool = 7, kString = 8;  // types of metadata

template <class T>
void put(OutputFile& out, T value) {
  out.write(&value, sizeof value);
}

void put_text(OutputFile& out, const std::string& text) {
  put(out, static_cast<std::uint64_t>(text.size()));
  out.write(text);
}

void put_value(OutputFile& out, const std::string& file, const std::string& key, const Json& value) {
  put_text(out, key);
  if (value.is_integer() && value.as_integer() >= 0 &&
      value.as_integer() <= std::numeric_limits<std::uint32_t>::max()) {
    put(out, kUint32);
    put(out, static_cast<std::uint32_t>(value.as_integer()));
  } else if (value.is_number() && !value.is_integer()) {
    put(out, kFloat32);
    put(out, static_cast<float>(value.as_number()));
  } else if (value.is_bool()) {
    put(out, kBool);
    put(out, static_cast<std::uint8_t>(value.as_bool()));
  } else if (value.is_string()) {
    put(out, kString);
    put_text(out, value.as_string());
  } else {
    throw RuntimeFault("'" + file + "': metadata '" + key + "' is " + value.dump() +
                       ", and a number from 0 to 2^32 - 1, a text or a boolean is expected.");
  }
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
                         const std::vector<GgufTensor>& tensors) {
  OutputFile out(file);
  out.write("GGUF");
  put(out, kVersion);
  put(out, static_cast<std::uint64_t>(tensors.size()));
  put(out, static_cast<std::uint64_t>(metadata.size()));
  for (const auto& [key, value] : metadata.as_object()) put_value(out, file.string(), key, value);
  std::uint64_t offset = 0;
  for (const GgufTensor& tensor : tensors) {
    put_text(out, tensor.data.name);
    put(out, static_cast<std::uint32_t>(tensor.shape.size()));
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size) {
      put(out, static_cast<std::uint64_t>(*size));
    }
    put(out, static_cast<std::uint32_t>(tensor.type));
    put(out, offset);
    offset += padded(bytes_of(tensor));
  }
  for (const GgufTensor& tensor : tensors) {
    pad(out);
    put_values(out, tensor.data);
  }
  pad(out);
  out.finish();
  return out.position();
}

}  // namespace capstan
