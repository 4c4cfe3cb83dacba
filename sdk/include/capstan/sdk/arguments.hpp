#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "capstan/sdk/aten.hpp"

namespace capstan {

/// What a layer takes beside its hidden states, by name: "attention_mask", "position_ids". Pinned tier.
class Arguments {
 public:
  Arguments() = default;
  Arguments(std::initializer_list<std::pair<std::string_view, at::Tensor>> named) {
    for (const auto& [name, tensor] : named) set(name, tensor);
  }

  /// Adds an argument, or puts another tensor in its place. An undefined tensor is no argument.
  void set(std::string_view name, at::Tensor tensor) {
    for (auto& [known, value] : named_) {
      if (known == name) {
        value = std::move(tensor);
        return;
      }
    }
    if (tensor.defined()) named_.emplace_back(std::string(name), std::move(tensor));
  }

  /// An undefined tensor when there is none of that name.
  at::Tensor get(std::string_view name) const {
    for (const auto& [known, value] : named_) {
      if (known == name) return value;
    }
    return {};
  }

  /// In the order in which they were added.
  const std::vector<std::pair<std::string, at::Tensor>>& named() const { return named_; }

 private:
  std::vector<std::pair<std::string, at::Tensor>> named_;
};

namespace sdk {

/// Arguments as they cross the plugin boundary, valid while `arguments` lives.
class LentArguments {
 public:
  explicit LentArguments(const Arguments& arguments) {
    lent_.reserve(arguments.named().size());
    for (const auto& [name, tensor] : arguments.named()) {
      lent_.push_back({sizeof(capstan_argument), to_str(name), lend(tensor)});
    }
    for (const capstan_argument& argument : lent_) pointers_.push_back(&argument);
  }
  LentArguments(const LentArguments&) = delete;
  LentArguments& operator=(const LentArguments&) = delete;

  const capstan_argument* const* data() const { return pointers_.data(); }
  std::size_t size() const { return pointers_.size(); }

 private:
  std::vector<capstan_argument> lent_;
  std::vector<const capstan_argument*> pointers_;
};

}  // namespace sdk
}  // namespace capstan
