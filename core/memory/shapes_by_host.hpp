#pragma once

#include <memory>

namespace capstan {

/// While it lives, operators of ATen for which LibTorch has no shapes (no kernel for tensors of the "meta" device,
/// which hold no values) get them from the CPU's kernel, on zeros. One at a time in a process. An operator that would
/// need more than 1 GiB throws RuntimeFault.
class ShapesByHost {
 public:
  ShapesByHost();
  ~ShapesByHost();
  ShapesByHost(const ShapesByHost&) = delete;

 private:
  struct Kernels;
  std::unique_ptr<Kernels> kernels_;
};

}  // namespace capstan
