#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/comm/transport.hpp"

namespace capstan {

/// A link between devices broke; which rank caused it is not known.
class LinkLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Messages between the devices of the processes of a run. One exchange at a time; between two ranks messages meet in
/// their order.
class DeviceLink {
 public:
  virtual ~DeviceLink() = default;
  /// Starts what Transport::start() starts. What wait() of the exchange throws is LinkLost; after abort() the link is
  /// of no use.
  virtual std::unique_ptr<Exchange> start(const std::vector<Message>& send, const std::vector<Message>& receive) = 0;
};

/// Makes links.
class DeviceLinks {
 public:
  virtual ~DeviceLinks() = default;
  /// Makes the text by which the devices of one run find each other. One rank calls it, for all.
  virtual std::string new_id() = 0;
  /// Connects this rank with the others. All ranks call it with the same id. `given_up` is asked while it waits, where
  /// the device's plugin does so: true ends it. Throws PluginError.
  virtual std::unique_ptr<DeviceLink> connect(const std::string& id, int rank, int size,
                                              const std::function<bool()>& given_up = nullptr) = 0;
};

/// `host`, with a link for tensors that are not in host memory. Its duplicate for another thread knows host memory
/// only.
std::shared_ptr<Transport> with_device_link(std::shared_ptr<Transport> host, std::unique_ptr<DeviceLink> link);

}  // namespace capstan
