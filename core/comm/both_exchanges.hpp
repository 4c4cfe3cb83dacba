#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "core/comm/transport.hpp"

namespace capstan {

/// Two that belong together; the first is waited for first. Where it fails, the second is ended.
class BothExchanges final : public Exchange {
 public:
  BothExchanges(std::unique_ptr<Exchange> first, std::unique_ptr<Exchange> second)
      : first_(std::move(first)), second_(std::move(second)) {}

  bool wait() override {
    try {
      if (first_->wait()) return second_->wait();
    } catch (...) {
      end_second();
      throw;
    }
    end_second();
    return false;
  }
  void abort() override {
    first_->abort();
    second_->abort();
  }
  std::optional<double> milliseconds() const override { return second_->milliseconds(); }

 private:
  /// The caller takes its memory back: nothing may wait to be written there.
  void end_second() noexcept {
    second_->abort();
    try {
      second_->wait();
    } catch (const std::exception&) {
      // The first says what went wrong.
    }
  }

  std::unique_ptr<Exchange> first_, second_;
};

}  // namespace capstan
