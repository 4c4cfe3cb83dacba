#include "core/parameters/state_offload.hpp"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

#include "core/log.hpp"

namespace capstan {

StateOffload::StateOffload(Component component)
    : component_(std::move(component)), where_("offload '" + component_.manifest().type + "'") {}

StateOffload::~StateOffload() {
  // The component may still read from the staging memory.
  try {
    wait();
  } catch (const std::exception& error) {
    log::warning(error.what());
  }
}

void StateOffload::reserve(const std::vector<std::uint64_t>& bytes) {
  bytes_ = bytes;
  staging_.resize(bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end()));
  for (std::size_t i = 0; i < bytes_.size(); ++i) {
    call_plugin(component_.function("register_buffer"), where_, [&](capstan_error* error) {
      return vtable()->register_buffer(component_.self(), i, bytes_[i], error);
    });
  }
}

void StateOffload::open(std::size_t) {
  wait();
  allocated_ = 0;
}

at::Tensor StateOffload::allocate(std::int64_t elements, at::ScalarType dtype, bool) {
  at::Tensor tensor = at::from_blob(staging_.data() + allocated_, {elements}, dtype);
  allocated_ += aligned(tensor.nbytes());
  return tensor;
}

void StateOffload::acquire(std::size_t index) {
  wait();
  std::uint64_t ticket = 0;
  call_plugin(component_.function("read_async"), where_, [&](capstan_error* error) {
    return vtable()->read_async(component_.self(), index, staging_.data(), bytes_[index], &ticket, error);
  });
  call_plugin(component_.function("wait"), where_,
              [&](capstan_error* error) { return vtable()->wait(component_.self(), ticket, error); });
}

void StateOffload::release(std::size_t index, bool changed) {
  if (!changed) return;
  wait();
  call_plugin(component_.function("write_async"), where_, [&](capstan_error* error) {
    return vtable()->write_async(component_.self(), index, staging_.data(), bytes_[index], &ticket_, error);
  });
  writing_ = true;
}

void StateOffload::wait() {
  if (!std::exchange(writing_, false)) return;
  call_plugin(component_.function("wait"), where_,
              [&](capstan_error* error) { return vtable()->wait(component_.self(), ticket_, error); });
}

}  // namespace capstan
