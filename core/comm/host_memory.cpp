#include "core/comm/host_memory.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <system_error>

#include "core/comm/both_exchanges.hpp"
#include "core/comm/forwarding_transport.hpp"
#include "core/comm/neighbour.hpp"
#include "core/errors.hpp"

namespace capstan {
namespace {

/// A descriptor that becomes readable when the exchange is aborted.
class Alarm {
 public:
  Alarm() : number_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (number_ < 0) throw RuntimeFault("eventfd: " + std::generic_category().message(errno) + ".");
  }
  ~Alarm() { close(number_); }
  Alarm(const Alarm&) = delete;

  void ring() {
    rung_ = true;
    eventfd_write(number_, 1);
  }
  const std::atomic<bool>& rung() const { return rung_; }
  int number() const { return number_; }

 private:
  int number_;
  std::atomic<bool> rung_ = false;
};

/// What is under way to and from one neighbour.
class Side {
 public:
  explicit Side(Neighbour& neighbour) : neighbour_(neighbour) {}

  Neighbour& neighbour() { return neighbour_; }

  void send(MessageKey key, const at::Tensor& values) {
    const bool brief = values.nbytes() <= Neighbour::kShort;
    const void* data = values.const_data_ptr();
    outgoing_.push_back({{brief ? Packet::Kind::kValues : Packet::Kind::kOffer, key, values.nbytes(),
                          reinterpret_cast<std::uint64_t>(data)},
                         brief ? data : nullptr});
    // Short ones too are waited for: a rank that ran ahead of the others would not be found in the call that differs.
    ++untaken_;
  }

  void want(MessageKey key, const at::Tensor& values) { wanted_[key] = {values.mutable_data_ptr(), values.nbytes()}; }

  short events() const {
    return static_cast<short>((wanted_.empty() && untaken_ == 0 ? 0 : POLLIN) | (outgoing_.empty() ? 0 : POLLOUT));
  }

  /// As far as it goes without waiting. False when aborted.
  bool advance(const std::atomic<bool>& aborted) {
    try {
      return try_to_advance(aborted);
    } catch (const PeerLost& lost) {
      lost_ = lost;
      return true;
    }
  }

  /// How the connection broke.
  const std::optional<PeerLost>& lost() const { return lost_; }

 private:
  struct Outgoing {
    Packet packet;
    const void* values;
  };
  struct Place {
    void* data;
    std::size_t bytes;
  };

  bool try_to_advance(const std::atomic<bool>& aborted) {
    flush();
    while (!wanted_.empty() || untaken_ > 0) {
      const auto arrived = neighbour_.receive();
      if (!arrived) return true;
      if (arrived->packet.kind == Packet::Kind::kTaken) {
        --untaken_;
      } else if (wanted_.contains(arrived->packet.key) && !accept(*arrived, aborted)) {
        return false;
      }
      // Else the other rank is in another call, for neither goes on before its own has ended: the two never meet again,
      // and the watchdog will say so.
    }
    return true;
  }

  bool accept(const Neighbour::Arrived& arrived, const std::atomic<bool>& aborted) {
    const auto place = wanted_.find(arrived.packet.key);
    if (arrived.packet.bytes != place->second.bytes) {
      throw PeerLost(neighbour_.rank(), "it sends " + std::to_string(arrived.packet.bytes) + " bytes where " +
                                            std::to_string(place->second.bytes) + " are expected");
    }
    if (arrived.packet.kind == Packet::Kind::kValues) {
      std::memcpy(place->second.data, arrived.values.data(), arrived.values.size());
    } else if (!neighbour_.take(arrived.packet, place->second.data, aborted)) {
      return false;
    }
    outgoing_.push_back({{Packet::Kind::kTaken, arrived.packet.key, 0, 0}, nullptr});
    flush();
    wanted_.erase(place);
    return true;
  }

  void flush() {
    while (!outgoing_.empty() && neighbour_.send(outgoing_.front().packet, outgoing_.front().values))
      outgoing_.pop_front();
  }

  Neighbour& neighbour_;
  std::deque<Outgoing> outgoing_;
  std::map<MessageKey, Place> wanted_;
  int untaken_ = 0;
  std::optional<PeerLost> lost_;
};

class MemoryExchange final : public Exchange {
 public:
  explicit MemoryExchange(std::vector<Side> sides) : sides_(std::move(sides)) {}

  /// Copies in the calling thread.
  bool wait() override {
    try {
      if (run()) return true;
      disconnect();
      return false;
    } catch (...) {
      disconnect();
      throw;
    }
  }

  void abort() override { alarm_.ring(); }

 private:
  bool run() {
    while (true) {
      std::vector<pollfd> waited{{alarm_.number(), POLLIN, 0}};
      for (Side& side : sides_) {
        if (side.lost()) continue;
        if (!side.advance(alarm_.rung())) return false;
        if (side.events() != 0) waited.push_back({side.neighbour().socket(), side.events(), 0});
      }
      const bool broken = check_lost();
      if (waited.size() == 1 && !broken) return true;
      if (poll(waited.data(), waited.size(), broken ? kBetweenLooks : -1) < 0 && errno != EINTR)
        throw RuntimeFault("poll: " + std::generic_category().message(errno) + ".");
      if (alarm_.rung()) return false;
    }
  }

  /// Whether a connection broke. Throws when that is the one to name: of a process that is gone, or, when no reason has
  /// turned up for a while, of one that has given up. It has, as this one will, because of another.
  bool check_lost() {
    const PeerLost* first = nullptr;
    for (Side& side : sides_) {
      if (!side.lost()) continue;
      if (!side.neighbour().alive()) throw *side.lost();
      if (!first) first = &*side.lost();
    }
    if (!first) return false;
    const auto now = std::chrono::steady_clock::now();
    if (!broken_since_) broken_since_ = now;
    if (now - *broken_since_ > kReasonPatience) throw *first;
    return true;
  }

  /// The caller may now use the memory that was offered for something else.
  void disconnect() {
    for (Side& side : sides_) side.neighbour().disconnect();
  }

  static constexpr int kBetweenLooks = 20;  // milliseconds
  static constexpr std::chrono::seconds kReasonPatience{5};

  std::vector<Side> sides_;
  Alarm alarm_;
  std::optional<std::chrono::steady_clock::time_point> broken_since_;
};

class HostMemoryTransport final : public ForwardingTransport {
 public:
  HostMemoryTransport(std::shared_ptr<Transport> network, int rank, int size, std::chrono::milliseconds patience)
      : ForwardingTransport(std::move(network)), rank_(rank), size_(size), patience_(patience) {
    for (auto& one : meet_neighbours(to(), rank, size, patience)) {
      const int peer = one->rank();
      neighbours_.emplace(peer, std::move(one));
    }
  }

  std::unique_ptr<Exchange> start(std::uint32_t tag, const std::vector<Message>& send,
                                  const std::vector<Message>& receive) override {
    std::map<int, Side> sides;
    const auto far = [&](const std::vector<Message>& messages, auto add) {
      std::vector<Message> others;
      std::map<int, std::uint32_t> counts;
      for (const Message& message : messages) {
        const auto neighbour = neighbours_.find(message.peer);
        if (neighbour == neighbours_.end()) {
          others.push_back(message);
        } else if (const MessageKey key{tag, counts[message.peer]++}; message.values.numel() > 0) {
          (sides.try_emplace(message.peer, *neighbour->second).first->second.*add)(key, message.values);
        }
      }
      return others;
    };
    const auto far_receive = far(receive, &Side::want);
    const auto far_send = far(send, &Side::send);

    std::unique_ptr<Exchange> network;
    if (!far_send.empty() || !far_receive.empty()) network = to().start(tag, far_send, far_receive);
    if (sides.empty() && network) return network;
    std::vector<Side> near;
    for (auto& [peer, side] : sides) near.push_back(std::move(side));
    auto memory = std::make_unique<MemoryExchange>(std::move(near));
    if (!network) return memory;
    return std::make_unique<BothExchanges>(std::move(memory), std::move(network));
  }

  std::shared_ptr<Transport> duplicate_for_thread(const std::string& purpose) override {
    return std::make_shared<HostMemoryTransport>(to().duplicate_for_thread(purpose), rank_, size_, patience_);
  }

 private:
  int rank_, size_;
  std::chrono::milliseconds patience_;
  std::map<int, std::unique_ptr<Neighbour>> neighbours_;
};

}  // namespace

std::shared_ptr<Transport> with_host_memory(std::shared_ptr<Transport> network, int rank, int size,
                                            std::chrono::milliseconds patience) {
  return std::make_shared<HostMemoryTransport>(std::move(network), rank, size, patience);
}

}  // namespace capstan
