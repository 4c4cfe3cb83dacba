#include "core/memory/shapes_by_host.hpp"

#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <vector>

#include "core/errors.hpp"
#include "core/memory/interceptor.hpp"

namespace capstan {
namespace {

constexpr std::size_t kMost = std::size_t{1} << 30;  // bytes

/// Zeros of that shape, which take the memory of one element until a kernel copies them.
at::Tensor zeros_like_host(const at::Tensor& meta, const c10::OperatorHandle& op) {
  if (!meta.defined() || !meta.is_meta()) return meta;
  if (meta.nbytes() > kMost) {
    throw RuntimeFault(op.schema().name() + " has no shapes for tensors without values, and one of its operands, " +
                       c10::str(meta.sizes()) + ", is too large to try.");
  }
  return at::zeros({}, meta.options().device(at::kCPU)).expand(meta.sizes());
}

at::Tensor without_values(const at::Tensor& host) {
  if (!host.defined() || !host.is_cpu()) return host;
  return at::empty_strided(host.sizes(), host.strides(), host.options().device(at::kMeta));
}

void run_on_host(const c10::OperatorHandle& op, OperatorStack* stack) {
  const auto& schema = op.schema();
  const std::size_t first = stack->size() - schema.arguments().size();
  std::vector<std::pair<const c10::AliasInfo*, at::Tensor>> written;  // which come back as they are
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    c10::IValue& value = (*stack)[first + i];
    if (value.isTensor()) {
      const at::Tensor given = value.toTensor();
      const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
      if (alias != nullptr && alias->isWrite()) written.emplace_back(alias, given);
      at::Tensor host = zeros_like_host(given, op);
      value = alias != nullptr && alias->isWrite() && host.defined() ? host.contiguous() : host;
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(zeros_like_host(tensor, op));
      value = std::move(list);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor ? std::optional(zeros_like_host(*tensor, op)) : std::nullopt);
      }
      value = std::move(list);
    } else if (value.isDevice() && value.toDevice().is_meta()) {
      value = at::Device(at::kCPU);
    }
  }
  op.callBoxed(stack);
  for (std::size_t i = 0; i < schema.returns().size(); ++i) {
    c10::IValue& value = (*stack)[first + i];
    const c10::AliasInfo* alias = schema.returns()[i].alias_info();
    if (value.isTensor() && alias != nullptr && alias->isWrite() && !written.empty()) {
      for (const auto& [argument, tensor] : written) {
        if (*argument == *alias) value = tensor;
      }
    } else if (value.isTensor()) {
      value = without_values(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(without_values(tensor));
      value = std::move(list);
    }
  }
}

// Operators of which a transformer runs many, whose shapes need no kernel.
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Three layer_norm(const at::Tensor& input, at::IntArrayRef normalized, const std::optional<at::Tensor>&,
                 const std::optional<at::Tensor>&, double) {
  std::vector<std::int64_t> rows = input.sizes().vec();
  std::fill(rows.end() - static_cast<std::ptrdiff_t>(normalized.size()), rows.end(), 1);
  return {at::empty_like(input), at::empty(rows, input.options()), at::empty(rows, input.options())};
}

Three layer_norm_backward(const at::Tensor&, const at::Tensor& input, at::IntArrayRef, const at::Tensor&,
                          const at::Tensor&, const std::optional<at::Tensor>& weight,
                          const std::optional<at::Tensor>& bias, std::array<bool, 3> wanted) {
  const auto like = [](bool wants, const at::Tensor& tensor) {
    return wants && tensor.defined() ? at::empty_like(tensor) : at::Tensor();
  };
  return {like(wanted[0], input), like(wanted[1], weight.value_or(at::Tensor())),
          like(wanted[2], bias.value_or(at::Tensor()))};
}

at::Tensor where(const at::Tensor& condition, const at::Tensor& a, const at::Tensor& b) {
  const auto sizes = at::infer_size(condition.sizes(), at::infer_size(a.sizes(), b.sizes()));
  return at::empty(sizes, a.options().dtype(at::result_type(a, b)));
}

constexpr const char* kDirect[] = {"aten::native_layer_norm", "aten::native_layer_norm_backward", "aten::where.self"};

bool lacks_shapes(const c10::OperatorHandle& op) {
  const auto has = [&](c10::DispatchKey key) { return op.hasKernelForDispatchKey(key); };
  return has(c10::DispatchKey::CPU) && !has(c10::DispatchKey::Meta) &&
         !has(c10::DispatchKey::CompositeImplicitAutograd) && !has(c10::DispatchKey::CompositeExplicitAutograd) &&
         !has(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
}

}  // namespace

struct ShapesByHost::Kernels {
  torch::Library library{torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__};
};

ShapesByHost::ShapesByHost() : kernels_(std::make_unique<Kernels>()) {
  kernels_->library.impl("native_layer_norm", TORCH_FN(layer_norm));
  kernels_->library.impl("native_layer_norm_backward", TORCH_FN(layer_norm_backward));
  kernels_->library.impl("where.self", TORCH_FN(where));
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    if (std::find(std::begin(kDirect), std::end(kDirect), c10::toString(name)) != std::end(kDirect)) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || !lacks_shapes(*op)) continue;
    const std::string full = name.name + (name.overload_name.empty() ? "" : "." + name.overload_name);
    kernels_->library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
}

ShapesByHost::~ShapesByHost() = default;

}  // namespace capstan
