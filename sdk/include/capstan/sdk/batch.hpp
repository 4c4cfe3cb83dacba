#pragma once

#include <optional>
#include <string_view>
#include <type_traits>

#include "capstan/sdk/component.hpp"

namespace capstan::sdk {

/// A micro-batch: named tensors and numbers. Valid for the call that it was handed to.
class Batch {
 public:
  Batch(const capstan_host* host, capstan_batch* batch, capstan_error* error)
      : host_(host), batch_(batch), error_(error) {}

  /// Borrowed. Throws the host's text when there is no tensor of that name.
  capstan_tensor tensor(std::string_view name) const {
    capstan_tensor handle = nullptr;
    check(host_->batch_tensor(batch_, to_str(name), &handle, error_));
    return handle;
  }
  /// Adds or replaces; the host takes its own reference.
  void set_tensor(std::string_view name, capstan_tensor tensor) {
    check(host_->batch_set_tensor(batch_, to_str(name), tensor, error_));
  }
  /// Calls take(name, tensor) for each tensor, which is borrowed; the batch must not change meanwhile.
  template <class Take>
  void each_tensor(Take&& take) const {
    capstan_visitor visitor{};
    visitor.struct_size = sizeof visitor;
    visitor.ctx = &take;
    visitor.tensor = [](void* ctx, capstan_str name, capstan_tensor tensor, capstan_role) {
      (*static_cast<std::remove_reference_t<Take>*>(ctx))(to_view(name), tensor);
    };
    check(host_->batch_visit(batch_, &visitor, error_));
  }
  std::optional<double> number(std::string_view name) const {
    double value = 0;
    int found = 0;
    check(host_->batch_number(batch_, to_str(name), &value, &found, error_));
    return found ? std::optional(value) : std::nullopt;
  }
  void set_number(std::string_view name, double value) {
    check(host_->batch_set_number(batch_, to_str(name), value, error_));
  }

 private:
  const capstan_host* host_;
  capstan_batch* batch_;
  capstan_error* error_;
};

}  // namespace capstan::sdk
