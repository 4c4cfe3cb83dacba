#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/zero/gradient_store.hpp"
#include "core/zero/part_store.hpp"

namespace capstan::test {

/// Keeps parts in memory, and gives them as late as it may: when they are waited for. Several threads may call it.
class LateStore final : public PartStore {
 public:
  Ticket read(std::size_t parameter, const at::Tensor& to) override {
    const std::lock_guard lock(mutex_);
    if (refuses == parameter) throw std::runtime_error("no room for another read");
    started.push_back(parameter);
    under_way_.emplace(++last_, std::pair(parameter, to));
    return last_;
  }
  void wait(Ticket ticket) override {
    const std::lock_guard lock(mutex_);
    const auto [parameter, to] = under_way_.at(ticket);
    under_way_.erase(ticket);
    if (fails == parameter) throw std::runtime_error("part " + std::to_string(parameter) + " cannot be read");
    at::Tensor(to).copy_(parts_.at(parameter));
  }
  void write(std::size_t parameter, const at::Tensor& part) override {
    const std::lock_guard lock(mutex_);
    parts_[parameter] = part.clone();
  }
  std::size_t under_way() {
    const std::lock_guard lock(mutex_);
    return under_way_.size();
  }

  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::size_t refuses = kNone, fails = kNone;  // parameters
  std::vector<std::size_t> started;

 private:
  std::mutex mutex_;
  std::map<std::size_t, at::Tensor> parts_;
  std::map<Ticket, std::pair<std::size_t, at::Tensor>> under_way_;
  Ticket last_ = 0;
};

/// Keeps gradients in memory of its own.
class CopyStore final : public GradientStore {
 public:
  void keep(std::size_t parameter, at::Tensor values, bool add) override {
    if (fails == parameter) throw std::runtime_error("gradient " + std::to_string(parameter) + " cannot be kept");
    if (values.dim() != 1 || !values.is_contiguous()) throw std::logic_error("not one dimension");
    if (add) values.add_(kept_.at(parameter));
    kept_[parameter] = values.clone();
  }
  void read(std::size_t parameter, at::Tensor to) override {
    ++reads;
    to.copy_(kept_.at(parameter));
  }
  bool has(std::size_t parameter) const { return kept_.contains(parameter); }

  std::size_t fails = static_cast<std::size_t>(-1);
  int reads = 0;

 private:
  std::map<std::size_t, at::Tensor> kept_;
};

}  // namespace capstan::test
