#include "core/comm/device_link.hpp"

#include <utility>

#include "core/comm/both_exchanges.hpp"
#include "core/comm/forwarding_transport.hpp"

namespace capstan {
namespace {

/// The messages whose tensors are in host memory, and the others, in their order.
std::pair<std::vector<Message>, std::vector<Message>> by_place(const std::vector<Message>& messages) {
  std::pair<std::vector<Message>, std::vector<Message>> out;
  for (const Message& message : messages) (message.values.is_cpu() ? out.first : out.second).push_back(message);
  return out;
}

class LinkedTransport final : public ForwardingTransport {
 public:
  LinkedTransport(std::shared_ptr<Transport> host, std::unique_ptr<DeviceLink> link)
      : ForwardingTransport(std::move(host)), link_(std::move(link)) {}

  std::unique_ptr<Exchange> start(std::uint32_t tag, const std::vector<Message>& send,
                                  const std::vector<Message>& receive) override {
    const auto [host_send, device_send] = by_place(send);
    const auto [host_receive, device_receive] = by_place(receive);
    if (device_send.empty() && device_receive.empty()) return to().start(tag, send, receive);
    if (host_send.empty() && host_receive.empty()) return link_->start(send, receive);
    auto host = to().start(tag, host_send, host_receive);
    return std::make_unique<BothExchanges>(std::move(host), link_->start(device_send, device_receive));
  }

 private:
  std::unique_ptr<DeviceLink> link_;
};

}  // namespace

std::shared_ptr<Transport> with_device_link(std::shared_ptr<Transport> host, std::unique_ptr<DeviceLink> link) {
  return std::make_shared<LinkedTransport>(std::move(host), std::move(link));
}

}  // namespace capstan
