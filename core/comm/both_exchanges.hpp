#pragma once

#include <memory>
#include <utility>

#include "core/comm/transport.hpp"

namespace capstan {

/// Two that belong together; the first is waited for first.
class BothExchanges final : public Exchange {
 public:
  BothExchanges(std::unique_ptr<Exchange> first, std::unique_ptr<Exchange> second)
      : first_(std::move(first)), second_(std::move(second)) {}

  bool wait() override { return first_->wait() && second_->wait(); }
  void abort() override {
    first_->abort();
    second_->abort();
  }

 private:
  std::unique_ptr<Exchange> first_, second_;
};

}  // namespace capstan
