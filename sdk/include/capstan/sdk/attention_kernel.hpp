#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "capstan/sdk/component.hpp"
#include "capstan/sdk/tensor.hpp"

/// Attention kernels: what computes attention over the blocks that a layout sets, on the device of the manifest.
///
///   class Kernel {
///    public:
///     Kernel(capstan::sdk::Host host, const capstan::sdk::Params& params);
///     struct Plan { ... };  // whatever it makes of a layout; released by its destructor
///     std::unique_ptr<Plan> prepare(const capstan::sdk::AttentionLayout& layout) const;
///     void forward(const Plan&, const capstan::sdk::AttentionCall& call, const capstan::sdk::Rows& out,
///                  float* log_sum_exp) const;
///     void backward(const Plan&, const capstan::sdk::AttentionCall& call,
///                   const capstan::sdk::AttentionGradients& gradients) const;
///   };
///   CAPSTAN_PLUGIN(&capstan::sdk::attention_kernel<Kernel, "block_sparse">)
///
/// All calls may come from any thread, several at once.
namespace capstan::sdk {

/// A layout as it is handed to kernels; valid during prepare().
struct AttentionLayout {
  std::uint32_t heads = 0, block = 0, blocks = 0;
  bool causal = false;
  const std::uint8_t* cells = nullptr;  // [heads][blocks][blocks]

  bool is_set(std::uint32_t head, std::uint32_t row, std::uint32_t column) const {
    return cells[(std::size_t{head} * blocks + row) * blocks + column] != 0;
  }
};

/// A tensor [batch, heads, tokens, width] whose rows' elements lie side by side.
struct Rows {
  void* data = nullptr;
  Dtype dtype = Dtype::kOther;
  std::int64_t batch = 0, heads = 0, tokens = 0, width = 0;
  std::int64_t batch_stride = 0, head_stride = 0, token_stride = 0;  // elements

  /// Throws where the tensor is not what is described above.
  static Rows of(capstan_tensor tensor, const char* what) {
    const auto shape = shape_of(tensor);
    std::int64_t* strides = nullptr;
    detail::check_torch(aoti_torch_get_strides(tensor, &strides), "get_strides");
    if (shape.size() != 4 || (shape[3] > 1 && strides[3] != 1)) {
      throw Error(std::string(what) + " must have four dimensions, and stride 1 along the last.");
    }
    const Values values = values_of(tensor);
    if (!values.is_float()) {
      throw Error(std::string(what) + " must be float32, bfloat16 or float16; it is " + dtype_name(tensor) + ".");
    }
    return {values.data, values.dtype, shape[0], shape[1], shape[2], shape[3], strides[0], strides[1], strides[2]};
  }
};

/// What joins the scores, [batch, heads, tokens, tokens] by its strides.
struct AttentionTerm {
  bool mask = false;             // `values` are bools, and false leaves a score out; else floats that are added
  const void* values = nullptr;  // bool or float
  std::int64_t batch_stride = 0, head_stride = 0, query_stride = 0, key_stride = 0;  // elements
  float* grad = nullptr;  // backward: [batch, heads, tokens, tokens], contiguous; null: not wanted
};

struct AttentionCall {
  double scale = 1;
  Rows q, k, v;
  std::vector<AttentionTerm> terms;

  explicit AttentionCall(const capstan_attention_call* raw)
      : scale(raw->scale), q(Rows::of(raw->q, "q")), k(Rows::of(raw->k, "k")), v(Rows::of(raw->v, "v")) {
    for (std::size_t i = 0; i < raw->term_count; ++i) {
      const capstan_attention_term& from = *raw->terms[i];
      std::int64_t* strides = nullptr;
      void* data = nullptr;
      detail::check_torch(aoti_torch_get_strides(from.values, &strides), "get_strides");
      detail::check_torch(aoti_torch_get_data_ptr(from.values, &data), "get_data_ptr");
      AttentionTerm term{from.mask != 0, data, strides[0], strides[1], strides[2], strides[3]};
      if (from.grad != nullptr) term.grad = static_cast<float*>(values_of(from.grad).data);
      terms.push_back(term);
    }
  }
};

/// What backward gets, and fills.
struct AttentionGradients {
  Rows out;
  const float* log_sum_exp = nullptr;  // [batch, heads, tokens]
  Rows grad;                           // of `out`
  Rows q, k, v;                        // to be filled
};

template <class T>
struct AttentionKernelCalls {
  using Plan = typename T::Plan;

  static capstan_status prepare(void* self, const capstan_attention_layout* raw, void** plan, capstan_error* error) {
    const auto& instance = *static_cast<Instance<T>*>(self);
    return guarded(instance.host, error, [&] {
      const AttentionLayout layout{raw->heads, raw->block, raw->blocks, raw->causal != 0, raw->cells};
      *plan = instance.object.prepare(layout).release();
    });
  }
  static void release(void*, void* plan) { delete static_cast<Plan*>(plan); }
  static capstan_status forward(void* self, void* plan, const capstan_attention_call* call, capstan_tensor out,
                                capstan_tensor log_sum_exp, capstan_error* error) {
    const auto& instance = *static_cast<Instance<T>*>(self);
    return guarded(instance.host, error, [&] {
      instance.object.forward(*static_cast<const Plan*>(plan), AttentionCall(call), Rows::of(out, "out"),
                              static_cast<float*>(values_of(log_sum_exp).data));
    });
  }
  static capstan_status backward(void* self, void* plan, const capstan_attention_call* call, capstan_tensor out,
                                 capstan_tensor log_sum_exp, capstan_tensor grad, capstan_tensor grad_q,
                                 capstan_tensor grad_k, capstan_tensor grad_v, capstan_error* error) {
    const auto& instance = *static_cast<Instance<T>*>(self);
    return guarded(instance.host, error, [&] {
      const AttentionGradients gradients{
          Rows::of(out, "out"),       static_cast<const float*>(values_of(log_sum_exp).data),
          Rows::of(grad, "grad"),     Rows::of(grad_q, "grad_q"),
          Rows::of(grad_k, "grad_k"), Rows::of(grad_v, "grad_v")};
      instance.object.backward(*static_cast<const Plan*>(plan), AttentionCall(call), gradients);
    });
  }
  static constexpr capstan_attention kTable = {
      sizeof(capstan_attention), nullptr, nullptr, &prepare, &release, &forward, &backward};
};

/// The descriptor of kernel class T.
template <class T, Literal Type>
inline constexpr capstan_component attention_kernel = describe<T, "attention", Type>(&AttentionKernelCalls<T>::kTable);

}  // namespace capstan::sdk
