#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "capstan/sdk/accelerator.hpp"
#include "device/order.hpp"

namespace capstan::emulated {

/// One exchange of messages: by a thread of its own, on the link's stream, behind whatever the caller's stream had when
/// the exchange began.
class Exchange {
 public:
  Exchange(const std::vector<int>& sockets, const std::vector<sdk::Message>& send,
           const std::vector<sdk::Message>& receive, int device);
  ~Exchange();
  /// False: it was aborted. Throws sdk::Error where a peer is gone.
  bool wait();
  void abort() noexcept { aborted_ = true; }
  /// After wait(): from the beginning to the arrival of all.
  double milliseconds() const { return milliseconds_; }

 private:
  struct Part {
    int socket;
    char* at;
    std::size_t left;
  };
  using Queue = std::vector<Part>;  // of one peer
  void add(const std::vector<int>& sockets, const sdk::Message& message, bool write, std::vector<Queue>& to,
           Queue& own);
  void run(std::vector<Queue> out, std::vector<Queue> in);
  bool move(std::vector<Queue>& queues, bool sending);

  std::vector<at::Tensor> held_;  // tensors whose memory the thread uses
  std::vector<Access> accesses_;
  Event event_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false, broken_ = false;  // guarded by mutex_
  bool waited_ = false;
  double milliseconds_ = 0;  // guarded by mutex_ until the exchange is done
  std::atomic<bool> aborted_{false};
  std::thread worker_;  // last: it uses the members above
};

/// The links of one process to the others of a group, over sockets of this host.
class Link {
 public:
  /// Meets the `size` processes that were given the same `id`. Throws sdk::Error where `given_up` says that one does
  /// not come.
  Link(const std::string& id, std::uint32_t rank, std::uint32_t size, int device, const sdk::GivenUp& given_up);
  ~Link();
  Link(const Link&) = delete;
  std::unique_ptr<Exchange> start(const std::vector<sdk::Message>& send, const std::vector<sdk::Message>& receive) {
    return std::make_unique<Exchange>(sockets_, send, receive, device_);
  }

 private:
  std::vector<int> sockets_;  // by rank; -1: this one
  int device_;
};

}  // namespace capstan::emulated
