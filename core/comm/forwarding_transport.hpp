#pragma once

#include <memory>
#include <string>
#include <utility>

#include "core/comm/transport.hpp"

namespace capstan {

/// A transport that leaves all but the messages to another one.
class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(std::shared_ptr<Transport> to) : to_(std::move(to)) {}

  void publish(const std::string& key, const std::string& text) override { to_->publish(key, text); }
  std::string read(const std::string& key, std::chrono::milliseconds patience) override {
    return to_->read(key, patience);
  }
  std::shared_ptr<Transport> duplicate_for_thread(const std::string& purpose) override {
    return to_->duplicate_for_thread(purpose);
  }
  std::shared_ptr<Transport> for_thread() override { return to_->for_thread(); }

 protected:
  Transport& to() const { return *to_; }

 private:
  std::shared_ptr<Transport> to_;
};

}  // namespace capstan
