#include "core/comm/staged_transport.hpp"

#include <utility>

#include "core/comm/forwarding_transport.hpp"
#include "core/host_tensor.hpp"

namespace capstan {
namespace {

/// Messages whose tensors are in host memory. What arrives is copied to the device by the thread that waits.
class StagedExchange final : public Exchange {
 public:
  StagedExchange(Transport& host, std::uint32_t tag, const std::vector<Message>& send,
                 const std::vector<Message>& receive) {
    for (const Message& message : send) send_.push_back({message.peer, message.values.to(at::kCPU)});
    for (const Message& message : receive) {
      const at::Tensor& to = message.values;
      receive_.push_back({message.peer, to.is_cpu() ? to : host_empty(to.sizes(), to.scalar_type())});
      if (!to.is_cpu()) arrivals_.emplace_back(receive_.back().values, to);
    }
    exchange_ = host.start(tag, send_, receive_);
  }

  bool wait() override {
    if (!exchange_->wait()) return false;
    for (const auto& [from, to] : arrivals_) at::Tensor(to).copy_(from);
    return true;
  }
  void abort() override { exchange_->abort(); }

 private:
  std::vector<Message> send_, receive_;
  std::vector<std::pair<at::Tensor, at::Tensor>> arrivals_;
  std::unique_ptr<Exchange> exchange_;  // last: it uses the memory above
};

class StagedTransport final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;

  std::unique_ptr<Exchange> start(std::uint32_t tag, const std::vector<Message>& send,
                                  const std::vector<Message>& receive) override {
    return std::make_unique<StagedExchange>(to(), tag, send, receive);
  }
};

}  // namespace

std::shared_ptr<Transport> through_host_copies(std::shared_ptr<Transport> host) {
  return std::make_shared<StagedTransport>(std::move(host));
}

}  // namespace capstan
