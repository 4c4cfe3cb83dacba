#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <cstdint>
#include <memory>
#include <type_traits>

#include "capstan/sdk/component.hpp"

namespace capstan::sdk {

/// Calls body(begin, end) for parts that cover [begin, end), on LibTorch's threads when there is more than `grain` to
/// do, else right here. How it is split depends on the number of threads, so `body` must not let results depend on it.
/// `body` must not throw.
template <class Body>
void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain, Body&& body) {
  if (end - begin <= grain) {
    if (begin < end) body(begin, end);
    return;
  }
  using Plain = std::remove_reference_t<Body>;
  const auto call = [](std::int64_t from, std::int64_t to, void* context) {
    (*static_cast<Plain*>(context))(from, to);
  };
  if (torch_parallel_for(begin, end, grain, call, const_cast<void*>(static_cast<const void*>(std::addressof(body)))) !=
      0) {
    throw Error("LibTorch: torch_parallel_for failed");
  }
}

}  // namespace capstan::sdk
