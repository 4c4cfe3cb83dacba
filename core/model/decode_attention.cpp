// The operators of capstan/decode_attention.hpp. The norm is an operator because its weight may be elsewhere, attention
// because models call it from plugins, which have no vector kernels of their own.

#include "capstan/decode_attention.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>

#include "core/model/decode_attention_kernels.hpp"

namespace capstan {
namespace {

constexpr std::int64_t kThreadShare = 1 << 16;  // elements of keys that a thread reads at least

/// The tensors of a call, looked at once.
struct Step {
  const at::Tensor &queries, &keys, &values;
  at::Tensor cos, sin;  // undefined: none
  at::Tensor &cached_keys, &cached_values;
  at::IntArrayRef sequences, lengths;
  double scale;
  std::int64_t window;

  std::int64_t rows() const { return queries.size(0); }
  std::int64_t heads() const { return queries.size(1); }
  std::int64_t kv_heads() const { return keys.size(1); }
  std::int64_t width() const { return queries.size(2); }
  std::int64_t capacity() const { return cached_keys.size(2); }
  std::int64_t turning() const { return cos.defined() ? cos.size(1) : 0; }
  /// Of a sequence's head in the cache.
  std::int64_t place(std::int64_t row, std::int64_t head) const {
    return (sequences[static_cast<std::size_t>(row)] * kv_heads() + head) * capacity() * width();
  }
  std::int64_t length(std::int64_t row) const { return lengths[static_cast<std::size_t>(row)]; }

  void check() const;
};

bool is_float(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous();
}

void Step::check() const {
  constexpr const char* kName = "capstan::decode_attention: ";
  for (const at::Tensor& tensor : {queries, keys, values, cached_keys, cached_values}) {
    TORCH_CHECK_TYPE(is_float(tensor), kName, "expected contiguous float32 tensors on the CPU.");
  }
  TORCH_CHECK_VALUE(cos.defined() == sin.defined() && (!cos.defined() || (is_float(cos) && is_float(sin))), kName,
                    "expected cosines and sines, contiguous in float32 on the CPU, or neither.");
  const bool shapes = queries.dim() == 3 && keys.dim() == 3 && keys.sizes() == values.sizes() &&
                      keys.size(0) == rows() && keys.size(2) == width() && kv_heads() > 0 &&
                      heads() % kv_heads() == 0 && cached_keys.dim() == 4 &&
                      cached_keys.sizes() == cached_values.sizes() && cached_keys.size(1) == kv_heads() &&
                      cached_keys.size(3) == width() && sequences.size() == static_cast<std::size_t>(rows()) &&
                      lengths.size() == sequences.size();
  const bool turns = !cos.defined() || (cos.dim() == 2 && cos.size(0) == rows() && cos.sizes() == sin.sizes() &&
                                        cos.size(1) % 2 == 0 && cos.size(1) <= width());
  TORCH_CHECK_VALUE(shapes && turns, kName, "the tensors do not fit together: queries ", queries.sizes(), ", keys ",
                    keys.sizes(), ", values ", values.sizes(), ", cached keys ", cached_keys.sizes(), ".");
  for (std::int64_t row = 0; row < rows(); ++row) {
    const std::int64_t sequence = sequences[static_cast<std::size_t>(row)];
    TORCH_CHECK_VALUE(sequence >= 0 && sequence < cached_keys.size(0) && length(row) >= 0 && length(row) < capacity(),
                      kName, "row ", row, " is sequence ", sequence, " with ", length(row),
                      " tokens, and the cache has ", cached_keys.size(0), " of ", capacity(), ".");
  }
}

/// A head turned as a model of transformers turns it: its first half with its second.
void turn(const float* from, const float* cos, const float* sin, std::int64_t turning, std::int64_t width, float* to) {
  const std::int64_t half = turning / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    to[i] = from[i] * cos[i] - from[i + half] * sin[i];
    to[i + half] = from[i + half] * cos[i + half] + from[i] * sin[i + half];
  }
  std::copy(from + turning, from + width, to + turning);
}

at::Tensor decode_attention_operator(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                                     const std::optional<at::Tensor>& cos, const std::optional<at::Tensor>& sin,
                                     at::Tensor& cached_keys, at::Tensor& cached_values, at::IntArrayRef sequences,
                                     at::IntArrayRef lengths, double scale, std::int64_t window) {
  const Step step{queries,
                  keys,
                  values,
                  cos.value_or(at::Tensor()),
                  sin.value_or(at::Tensor()),
                  cached_keys,
                  cached_values,
                  sequences,
                  lengths,
                  scale,
                  window};
  step.check();
  const std::int64_t width = step.width(), group = step.heads() / step.kv_heads();
  const float* const cosines = step.turning() > 0 ? step.cos.const_data_ptr<float>() : nullptr;
  const float* const sines = step.turning() > 0 ? step.sin.const_data_ptr<float>() : nullptr;
  const auto turned = [&](const float* from, std::int64_t row, float* to) {
    turn(from, cosines + row * step.turning(), sines + row * step.turning(), step.turning(), width, to);
  };
  auto* const known_keys = cached_keys.mutable_data_ptr<float>();
  auto* const known_values = cached_values.mutable_data_ptr<float>();
  for (std::int64_t row = 0; row < step.rows(); ++row) {
    for (std::int64_t head = 0; head < step.kv_heads(); ++head) {
      const std::int64_t from = (row * step.kv_heads() + head) * width;
      const std::int64_t to = step.place(row, head) + step.length(row) * width;
      turned(keys.const_data_ptr<float>() + from, row, known_keys + to);
      std::copy_n(values.const_data_ptr<float>() + from, width, known_values + to);
    }
  }
  at::Tensor out = at::empty(queries.sizes(), queries.options());
  const auto* const query = queries.const_data_ptr<float>();
  auto* const result = out.mutable_data_ptr<float>();
  const std::int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end()) + 1;
  const std::int64_t share = std::max<std::int64_t>(kThreadShare / std::max<std::int64_t>(longest * width, 1), 1);
  at::parallel_for(0, step.rows() * step.heads(), share, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> room(static_cast<std::size_t>(longest + width));
    for (std::int64_t one = begin; one < end; ++one) {
      const std::int64_t row = one / step.heads(), head = one % step.heads(), all = step.length(row) + 1;
      const std::int64_t seen = window > 0 ? std::min(all, window) : all;
      const std::int64_t place = step.place(row, head / group) + (all - seen) * width;
      turned(query + one * width, row, room.data());
      attend_to_tokens({room.data(), known_keys + place, known_values + place, seen, width, scale, room.data() + width,
                        result + one * width});
    }
  });
  return out;
}

at::Tensor few_rows_rms_norm_operator(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const bool fits = is_float(x) && is_float(weight) && x.dim() >= 1 && weight.dim() == 1 &&
                    x.size(-1) == weight.size(0) && x.numel() > 0;
  if (!fits || at::GradMode::is_enabled()) return at::rms_norm(x, {x.size(-1)}, {}, eps).mul(weight);
  at::Tensor out = at::empty(x.sizes(), x.options());
  rms_norm_rows(x.const_data_ptr<float>(), weight.const_data_ptr<float>(), eps, x.numel() / weight.numel(),
                weight.numel(), out.mutable_data_ptr<float>());
  return out;
}

}  // namespace
}  // namespace capstan

TORCH_LIBRARY_FRAGMENT(capstan, m) {
  m.def(
      "decode_attention(Tensor queries, Tensor keys, Tensor values, Tensor? cos, Tensor? sin, Tensor(a!) cached_keys, "
      "Tensor(b!) cached_values, int[] sequences, int[] lengths, float scale, int window) -> Tensor",
      &capstan::decode_attention_operator);
  m.def("few_rows_rms_norm(Tensor x, Tensor weight, float eps) -> Tensor", &capstan::few_rows_rms_norm_operator);
}
