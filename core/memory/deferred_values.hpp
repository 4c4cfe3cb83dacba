#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/memory/interceptor.hpp"

namespace capstan {

/// How the values of tensors come to be, written down instead of done: a lazy initialiser. So a model is built without
/// the memory of its parameters, and they get their values later, a few at a time.
///
/// While a Scope lives, every large floating-point tensor that this thread makes on the CPU has its shape and strides,
/// and no memory. Operators that write it in place (normal_, mul_, copy_ from another such tensor, on views as well)
/// are recorded, and run when the values are made. Random ones draw their numbers at once as well, into memory that is
/// given back, so that the generator always is where plain construction has it. An operator that reads values makes
/// them, and those that they depend on, at that moment.
///
/// So what is made in the end is bit-equal to plain construction. What is not served is code that reads or writes
/// memory without an operator: it gets an exception, whose text is_refusal() knows.
class DeferredValues {
 public:
  /// Tensors of fewer elements than `smallest` have memory as ever.
  explicit DeferredValues(std::int64_t smallest = 16 << 10);
  ~DeferredValues();
  DeferredValues(const DeferredValues&) = delete;

  class Scope {
   public:
    explicit Scope(DeferredValues& values);

   private:
    InterceptorScope scope_;
  };

  /// Whether the tensor's values are still to be made.
  bool has(const at::Tensor& tensor) const;
  /// The operator that read the tensor's values while a scope lived, so that they were made early; empty: none.
  std::string reader(const at::Tensor& tensor) const;
  /// Makes the values of a tensor, and of all tensors whose values depend on one another with them. Made values stay.
  void make(const at::Tensor& tensor);
  /// Makes all values that are left, outside of scopes: tensors that depend on one another together, the others one by
  /// one, in the order in which the tensors came to be. `made` gets each storage that anything else still uses, and
  /// returns whether its memory may go again. Throws RuntimeFault with what an operator that runs only now throws.
  void make(const std::function<bool(const c10::Storage&)>& made);

  /// A tensor of the same shape that has no memory either.
  static at::Tensor without_memory(const at::Tensor& like, at::ScalarType dtype, at::Device device);
  static bool is_refusal(std::string_view message);

 private:
  class Recorder;
  std::unique_ptr<Recorder> recorder_;
};

}  // namespace capstan
