#include "core/checkpoint/gguf_tensors.hpp"

#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "core/checkpoint/read_values.hpp"
#include "core/errors.hpp"
#include "core/host_tensor.hpp"
#include "core/pretrained/gguf_model.hpp"

namespace capstan {
namespace {

constexpr std::int64_t kGgufBlock = 32;  // elements of a quantised block

float half_at(const std::uint8_t* bytes) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return static_cast<float>(c10::Half(bits, c10::Half::from_bits()));
}

/// The 32 values of a block (https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h). Of 4 bits the lower
/// halves of the bytes come first.
void unpack_block(GgufType type, const std::uint8_t* block, float* values) {
  const float scale = half_at(block);
  if (type == GgufType::kQ8_0) {
    for (int i = 0; i < kGgufBlock; ++i) values[i] = scale * static_cast<float>(static_cast<std::int8_t>(block[2 + i]));
    return;
  }
  const bool has_least = type == GgufType::kQ4_1;
  const std::uint8_t* codes = block + (has_least ? 4 : 2);
  const float least = has_least ? half_at(block + 2) : 0;
  const int zero = has_least ? 0 : 8;
  for (int i = 0; i < kGgufBlock / 2; ++i) {
    values[i] = scale * static_cast<float>((codes[i] & 15) - zero) + least;
    values[i + kGgufBlock / 2] = scale * static_cast<float>((codes[i] >> 4) - zero) + least;
  }
}

at::ScalarType dtype_of(GgufType type) {
  return type == GgufType::kF16 ? at::kHalf : type == GgufType::kBF16 ? at::kBFloat16 : at::kFloat;
}

/// One tensor as transformers has it.
struct GgufValues {
  std::shared_ptr<const MappedFile> file;
  GgufTensorInfo info;
  GgufPlace place;

  bool is_quantised() const { return block_of(info.type).elements > 1; }

  /// Elements of the file from `from` on.
  void copy(std::int64_t from, std::int64_t count, float* to) const {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(file->data() + info.begin);
    if (!is_quantised()) {
      const at::ScalarType dtype = dtype_of(info.type);
      const auto size = static_cast<std::int64_t>(c10::elementSize(dtype));
      at::Tensor values = host_empty({count}, dtype);
      std::memcpy(values.mutable_data_ptr(), bytes + from * size, static_cast<std::size_t>(count * size));
      values = values.to(at::kFloat);
      std::memcpy(to, values.const_data_ptr(), static_cast<std::size_t>(count) * sizeof(float));
      return;
    }
    const auto block_bytes = static_cast<std::int64_t>(block_of(info.type).bytes);
    float values[kGgufBlock];
    for (std::int64_t done = 0; done < count;) {
      const std::int64_t element = from + done, begin = element % kGgufBlock;
      const std::int64_t some = std::min(kGgufBlock - begin, count - done);
      unpack_block(info.type, bytes + element / kGgufBlock * block_bytes, values);
      std::copy_n(values + begin, some, to + done);
      done += some;
    }
  }

  /// The row of the file that holds row `row`.
  std::int64_t row_there(std::int64_t row) const {
    const std::int64_t size = info.shape[0] / place.rotary_heads, half = size / 2;
    const std::int64_t in_head = row % size;
    return row - in_head + 2 * (in_head % half) + in_head / half;
  }

  at::Tensor read(std::int64_t from, std::int64_t count) const {
    at::Tensor values = host_empty({count}, at::kFloat);
    auto* to = values.mutable_data_ptr<float>();
    if (place.rotary_heads == 0) {
      copy(from, count, to);
    } else {
      const std::int64_t columns = info.shape.size() < 2 ? 1 : info.shape[1];
      for (std::int64_t done = 0; done < count;) {
        const std::int64_t row = (from + done) / columns, column = (from + done) % columns;
        const std::int64_t some = std::min(columns - column, count - done);
        copy(row_there(row) * columns + column, some, to + done);
        done += some;
      }
    }
    if (place.plus_one) values.sub_(1);
    return values;
  }
};

void check_heads(const GgufTensorInfo& tensor, const GgufPlace& place, const std::string& where) {
  if (place.rotary_heads == 0) return;
  if (!tensor.shape.empty() && tensor.shape.size() <= 2 && tensor.shape[0] % (2 * place.rotary_heads) == 0) return;
  throw RuntimeFault(where + ": tensor '" + tensor.name + "' has " +
                     std::to_string(tensor.shape.empty() ? 0 : tensor.shape[0]) + " rows, which " +
                     std::to_string(place.rotary_heads) + " heads of an even size do not make up.");
}

SafetensorsEntry entry_of(GgufValues values, const std::string& name) {
  if (!values.is_quantised() && values.place.rotary_heads == 0 && !values.place.plus_one) {
    const GgufTensorInfo& info = values.info;
    return {name, mapped_tensor(values.file, {name, dtype_of(info.type), info.shape, info.begin, info.end})};
  }
  const at::Tensor shape = values_elsewhere(values.info.shape, at::kFloat);
  return {name, shape,
          [values = std::move(values)](std::int64_t from, std::int64_t count) { return values.read(from, count); }};
}

}  // namespace

GgufWeights::GgufWeights(const std::filesystem::path& file)
    : where_("'" + file.string() + "'"), files_(file), config_(config_of_gguf(files_.header, files_.bytes(), where_)) {}

std::map<std::string, SafetensorsEntry> GgufWeights::read(const std::vector<std::string>& names) const {
  std::map<std::string, SafetensorsEntry> tensors;
  std::set<std::string> used = {"rope_freqs.weight"};  // config() tells what it says
  for (const std::string& name : names) {
    const std::optional<GgufPlace> place = gguf_place(config_, name);
    const GgufTensorInfo* info = place ? files_.header.tensor(place->name) : nullptr;
    if (info == nullptr) continue;
    check_heads(*info, *place, where_);
    used.insert(info->name);
    tensors.emplace(name, entry_of({files_.files[info->part], *info, *place}, name));
  }
  for (const GgufTensorInfo& info : files_.header.tensors) {
    if (!used.contains(info.name)) tensors.emplace(info.name, entry_of({files_.files[info.part], info, {}}, info.name));
  }
  return tensors;
}

}  // namespace capstan
