#include "core/comm/communicator.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <exception>
#include <functional>
#include <optional>

#include "core/comm/device_link.hpp"
#include "core/comm/host_memory.hpp"
#include "core/comm/staged_transport.hpp"
#include "core/comm/transport.hpp"
#include "core/comm/watchdog.hpp"
#include "core/errors.hpp"
#include "core/host_tensor.hpp"

namespace capstan {
namespace {

/// Messages of different calls must never meet: a rank that is in another collective waits instead of receiving
/// something else. 31 bits of FNV-1a over the call and its name.
std::uint32_t tag_of(std::uint64_t call, const std::string& name) {
  std::uint64_t hash = 0xCBF29CE484222325;
  const auto add = [&](std::uint8_t byte) { hash = (hash ^ byte) * 0x100000001B3; };
  for (int shift = 0; shift < 64; shift += 8) add(static_cast<std::uint8_t>(call >> shift));
  for (const char c : name) add(static_cast<std::uint8_t>(c));
  return static_cast<std::uint32_t>(hash ^ (hash >> 32)) & 0x7fffffff;
}

/// A write to a rank that has died fails, which becomes a sentence; the signal that comes with it would end this
/// process first. A program's own handler stays.
void ignore_broken_pipes() {
  struct sigaction current {};
  if (sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

/// Where processes do not connect, one of the others is at fault.
void connecting(const std::function<void()>& connect) {
  try {
    connect();
  } catch (const RuntimeFault& fault) {
    throw PeerFault(fault.what());
  }
}

}  // namespace

struct Communicator::State {
  int rank = 0, size = 1, local_rank = 0, ranks_per_host = 1;
  std::vector<int> hosts = {0};  // by rank
  Options options;
  std::shared_ptr<Transport> transport;
  std::optional<at::DeviceType> linked;  // whose memory the transport has a link for
  std::unique_ptr<Watchdog> watchdog;
  std::uint64_t calls = 0;
  CommsLog log;
  int inside = 0;            // collectives that others are made of
  bool recording = true;     // not while the log itself is compared
  std::uint64_t sent = 0;    // by the outermost collective
  double device_ms = 0;      // of its exchanges that devices timed
  at::Tensor scratch;        // bytes, grown as needed
  State* parent = nullptr;   // for a group: the communicator whose connections it uses
  std::vector<int> members;  // for a group: the ranks of its members in `parent`

  void start_watchdog() {
    watchdog = std::make_unique<Watchdog>(
        transport->for_thread(), rank, size,
        Watchdog::Options{options.watch_every, options.timeout, options.lingers, options.given_up});
  }
  bool connected() const { return parent != nullptr || transport != nullptr; }
  State& base() { return parent ? *parent : *this; }

  /// Uninitialised memory of that many bytes, the same from call to call: fresh pages would cost more than the copy.
  std::byte* reserve(std::int64_t bytes, at::Device device) {
    if (!scratch.defined() || scratch.numel() < bytes || scratch.device() != device) {
      scratch.reset();  // first, or for a moment there would be both
      scratch = at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
    }
    return static_cast<std::byte*>(scratch.mutable_data_ptr());
  }

  /// Adds the outermost collective to the log when it has ended well.
  class Logged {
   public:
    /// `bytes`: of the op's tensor, see bandwidth_of().
    Logged(State& state, std::string_view op, Caller caller, std::uint64_t bytes)
        : state_(state), op_(op), caller_(caller), bytes_(bytes), exceptions_(std::uncaught_exceptions()) {
      if (state_.inside++ > 0) return;
      state_.sent = 0;
      state_.device_ms = 0;
    }
    ~Logged() {
      if (--state_.inside > 0 || !state_.base().recording || std::uncaught_exceptions() > exceptions_) return;
      const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin_;
      // The host's clock counts the work that the device had to end before.
      const double milliseconds = state_.device_ms > 0 ? state_.device_ms : took.count();
      state_.base().log.add({op_, caller_, bytes_, state_.sent, milliseconds, state_.size});
    }
    Logged(const Logged&) = delete;

   private:
    State& state_;
    std::string_view op_;
    Caller caller_;
    std::uint64_t bytes_;
    int exceptions_;
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  };

  void exchange(const std::string& name, std::vector<Message> send, std::vector<Message> receive, std::uint64_t bytes) {
    for (const Message& message : send) sent += message.values.nbytes();
    if (parent == nullptr) {
      device_ms += exchange_among_all(name, send, receive, bytes).value_or(0);
      return;
    }
    for (auto* messages : {&send, &receive}) {
      for (Message& message : *messages) message.peer = members[static_cast<std::size_t>(message.peer)];
    }
    // Other groups may be larger, or exchange more.
    device_ms += parent->exchange_among_all(name + ", in groups", send, receive, 0).value_or(0);
  }

  /// Returns how long it took on the devices, where they know.
  std::optional<double> exchange_among_all(const std::string& name, const std::vector<Message>& send,
                                           const std::vector<Message>& receive, std::uint64_t bytes) {
    const std::uint64_t call = ++calls;
    watchdog->enter(call, name, bytes);
    std::optional<double> milliseconds;
    try {
      const auto pending = transport->start(tag_of(call, name + "/" + std::to_string(bytes)), send, receive);
      watchdog->watch(pending.get());
      bool done = false;
      try {
        done = pending->wait();
      } catch (...) {
        watchdog->watch(nullptr);
        throw;
      }
      watchdog->watch(nullptr);
      if (!done) throw PeerFault(where(name) + watchdog->verdict());
      milliseconds = pending->milliseconds();
    } catch (const LinkLost& lost) {
      const std::string verdict = watchdog->verdict();
      throw PeerFault(where(name) + (verdict.empty() ? lost.what() : verdict));
    } catch (const PeerLost& lost) {
      const std::string verdict = watchdog->verdict();
      if (!verdict.empty()) throw PeerFault(where(name) + verdict);
      const auto [peer, words] = watchdog->last_words(lost.peer());
      const std::string who = "rank " + std::to_string(peer);
      throw PeerFault(where(name) +
                      (words.empty() || words == "finished"
                           ? who + " is gone" + (words.empty() ? "" : ": it has finished") + " (" + lost.what() + ")."
                           : who + " stopped: " + words));
    }
    watchdog->leave();
    return milliseconds;
  }

  std::string where(const std::string& name) const {
    return "rank " + std::to_string(rank) + ": collective '" + name + "' failed: ";
  }
};

Communicator::Communicator(std::unique_ptr<State> state) : state_(std::move(state)) {}
Communicator::~Communicator() = default;

std::shared_ptr<Communicator> Communicator::alone() {
  return std::shared_ptr<Communicator>(new Communicator(std::make_unique<State>()));
}

std::shared_ptr<Communicator> Communicator::connect(const Rendezvous& rendezvous, const Options& options) {
  auto state = std::make_unique<State>();
  state->rank = rendezvous.rank;
  state->size = rendezvous.size;
  state->local_rank = rendezvous.local_rank;
  const bool even = rendezvous.local_size > 0 && rendezvous.size % rendezvous.local_size == 0;
  state->ranks_per_host = even ? rendezvous.local_size : rendezvous.size;
  state->hosts = rendezvous.hosts;
  for (int rank = static_cast<int>(state->hosts.size()); rank < state->size; ++rank) {
    state->hosts.push_back(rank / state->ranks_per_host);
  }
  state->options = options;
  if (rendezvous.size > 1) {
    ignore_broken_pipes();
    connecting([&] {
      const std::chrono::milliseconds connection = options.connection.value_or(options.arrival);
      state->transport = with_host_memory(connect_gloo(rendezvous, options.arrival, connection), rendezvous.rank,
                                          rendezvous.size, connection);
      state->start_watchdog();
    });
  }
  return std::shared_ptr<Communicator>(new Communicator(std::move(state)));
}

std::shared_ptr<Communicator> Communicator::duplicate_for_thread(const std::string& purpose) {
  if (!connected()) return alone();
  auto state = std::make_unique<State>();
  state->rank = state_->rank;
  state->size = state_->size;
  state->local_rank = state_->local_rank;
  state->ranks_per_host = state_->ranks_per_host;
  state->hosts = state_->hosts;
  state->options = state_->options;
  connecting([&] {
    state->transport = state_->transport->duplicate_for_thread(purpose);
    state->start_watchdog();
  });
  return std::shared_ptr<Communicator>(new Communicator(std::move(state)));
}

void Communicator::connect_devices(DeviceLinks* links, at::DeviceType device) {
  if (size() == 1 || state_->linked == device) return;
  if (state_->linked) {
    throw RuntimeFault("rank " + std::to_string(rank()) + ": the processes' link is between devices of type '" +
                       c10::DeviceTypeName(*state_->linked, true) + "', and this engine is on '" +
                       c10::DeviceTypeName(device, true) + "'. It needs a communicator of its own.");
  }
  if (links == nullptr) {
    state_->transport = through_host_copies(state_->transport);
  } else {
    const std::string id = all_gather_text("start: link between devices", rank() == 0 ? links->new_id() : "").front();
    const auto until = std::chrono::steady_clock::now() + state_->options.connection.value_or(state_->options.arrival);
    const auto given_up = [until, over = state_->options.given_up] {
      return std::chrono::steady_clock::now() > until || (over && over());
    };
    state_->transport = with_device_link(state_->transport, links->connect(id, rank(), size(), given_up));
  }
  state_->linked = device;
}

std::unique_ptr<Communicator> Communicator::group(const std::vector<int>& members) {
  auto state = std::make_unique<State>();
  state->parent = &state_->base();
  state->size = state->ranks_per_host = static_cast<int>(members.size());
  state->hosts.clear();
  for (const int member : members) {
    state->hosts.push_back(state_->hosts[static_cast<std::size_t>(member)]);
    if (member == rank()) state->rank = static_cast<int>(state->members.size());
    state->members.push_back(state_->parent ? state_->members[static_cast<std::size_t>(member)] : member);
  }
  return std::unique_ptr<Communicator>(new Communicator(std::move(state)));
}

int Communicator::rank() const { return state_->rank; }
int Communicator::size() const { return state_->size; }
int Communicator::local_rank() const { return state_->local_rank; }
int Communicator::ranks_per_host() const { return state_->ranks_per_host; }
const std::vector<int>& Communicator::hosts() const { return state_->hosts; }
bool Communicator::connected() const { return state_->connected(); }
CommsLog& Communicator::log() { return state_->base().log; }

CommsSummary Communicator::comms_summary(bool stragglers) {
  if (!stragglers) return state_->log.summary(rank(), size());
  state_->recording = false;
  std::vector<double> fastest = state_->log.times();
  const auto counts = all_gather_text("comms_summary, calls", std::to_string(fastest.size()));
  for (std::size_t peer = 0; peer < counts.size(); ++peer) {
    if (counts[peer] == counts[0]) continue;
    state_->recording = true;
    throw RuntimeFault("comms_summary: rank 0 has recorded " + counts[0] + " calls and rank " + std::to_string(peer) +
                       " " + counts[peer] + ", so they cannot be compared. Start, stop and reset the log on all " +
                       "ranks alike.");
  }
  std::vector<at::Tensor> parts;
  for (int peer = 0; peer < size(); ++peer) {
    parts.push_back(host_empty({static_cast<std::int64_t>(fastest.size())}, at::kDouble));
  }
  std::copy(fastest.begin(), fastest.end(), parts[static_cast<std::size_t>(rank())].mutable_data_ptr<double>());
  all_gather("comms_summary, times", parts);
  for (const at::Tensor& part : parts) {
    const auto* of_rank = part.const_data_ptr<double>();
    for (std::size_t i = 0; i < fastest.size(); ++i) fastest[i] = std::min(fastest[i], of_rank[i]);
  }
  state_->recording = true;
  return state_->log.summary(rank(), size(), fastest);
}

void Communicator::all_gather(const std::string& name, const std::vector<at::Tensor>& parts, Caller caller) {
  all_gather(name, std::vector<std::vector<at::Tensor>>{parts}, caller);
}

void Communicator::all_gather(const std::string& name, const std::vector<std::vector<at::Tensor>>& pieces,
                              Caller caller) {
  if (!connected()) return;
  const auto own = static_cast<std::size_t>(rank());
  std::vector<Message> send, receive;
  std::uint64_t bytes = 0;
  for (const auto& parts : pieces) {
    for (std::size_t peer = 0; peer < parts.size(); ++peer) {
      bytes += parts[peer].nbytes();
      if (peer == own) continue;
      send.push_back({static_cast<int>(peer), parts[own]});
      receive.push_back({static_cast<int>(peer), parts[peer]});
    }
  }
  // Parts may differ in size, and rows of the log should not: the mean of them.
  const State::Logged logged(*state_, "all_gather", caller, bytes / static_cast<std::uint64_t>(size()));
  state_->exchange(name, send, receive, bytes);
}

at::Tensor Communicator::reduce_scatter(const std::string& name, const std::vector<at::Tensor>& parts, Caller caller) {
  at::NoGradGuard no_grad;
  const at::Tensor& own = parts[static_cast<std::size_t>(rank())];
  const std::int64_t count = own.numel();
  const auto element = static_cast<std::int64_t>(own.element_size());
  std::byte* const memory = state_->reserve(count * (4 + element * (size() - 1)), own.device());
  at::Tensor sum = at::from_blob(memory, {count}, own.options().dtype(at::kFloat));
  std::vector<Message> send, receive;
  std::vector<at::Tensor> addends(parts.size());
  std::uint64_t bytes = 0;
  for (int peer = 0, slot = 0; peer < size(); ++peer) {
    const auto index = static_cast<std::size_t>(peer);
    bytes += parts[index].nbytes();
    addends[index] = own;
    if (peer == rank()) continue;
    addends[index] = at::from_blob(memory + count * (4 + element * slot++), {count}, own.options());
    send.push_back({peer, parts[index]});
    receive.push_back({peer, addends[index]});
  }
  const auto add_up = [&] {
    sum.copy_(addends.front());
    for (std::size_t i = 1; i < addends.size(); ++i) sum.add_(addends[i]);
    return sum;
  };
  if (!connected()) return add_up();
  const State::Logged logged(*state_, "reduce_scatter", caller, bytes / static_cast<std::uint64_t>(size()));
  state_->exchange(name, send, receive, bytes);
  return add_up();
}

void Communicator::all_reduce(const std::string& name, const std::vector<at::Tensor>& parts, double factor,
                              Caller caller) {
  std::uint64_t bytes = 0;
  for (const at::Tensor& part : parts) bytes += part.nbytes();
  const State::Logged logged(*state_, "all_reduce", caller, bytes);
  at::Tensor sum = reduce_scatter(name, parts);
  if (factor != 1) sum.mul_(factor);
  parts[static_cast<std::size_t>(rank())].copy_(sum);
  all_gather(name + ", result", parts);
}

void Communicator::all_reduce_exact(const std::string& name, at::Tensor values, Caller caller) {
  if (!connected()) return;
  at::NoGradGuard no_grad;
  const State::Logged logged(*state_, "all_reduce", caller, values.nbytes());
  const at::Tensor own = values.contiguous().view({-1});
  std::vector<at::Tensor> all;
  for (int peer = 0; peer < size(); ++peer) all.push_back(peer == rank() ? own : at::empty_like(own));
  all_gather(name, all);
  const bool narrow = own.scalar_type() == at::kHalf || own.scalar_type() == at::kBFloat16;
  at::Tensor sum = all.front().to(narrow ? at::kFloat : own.scalar_type(), false, /*copy=*/true);
  for (std::size_t i = 1; i < all.size(); ++i) sum.add_(all[i]);
  values.copy_(sum.view_as(values));
}

void Communicator::all_to_all(const std::string& name, const std::vector<at::Tensor>& send_parts,
                              const std::vector<at::Tensor>& receive_parts, Caller caller) {
  at::NoGradGuard no_grad;
  std::vector<Message> send, receive;
  std::uint64_t bytes = 0;
  for (int peer = 0; peer < size(); ++peer) {
    const auto index = static_cast<std::size_t>(peer);
    bytes += send_parts[index].nbytes();
    if (peer == rank()) {
      at::Tensor kept = receive_parts[index];
      kept.copy_(send_parts[index].view_as(kept));
      continue;
    }
    send.push_back({peer, send_parts[index]});
    receive.push_back({peer, receive_parts[index]});
  }
  if (!connected()) return;
  const State::Logged logged(*state_, "all_to_all_single", caller, bytes);
  // What one sends another receives, so the ranks' own sums of bytes need not be equal; the name must.
  state_->exchange(name, send, receive, 0);
}

void Communicator::broadcast(const std::string& name, const std::vector<at::Tensor>& values, int root, Caller caller) {
  if (!connected()) return;
  std::vector<Message> send, receive;
  std::uint64_t bytes = 0;
  for (const at::Tensor& one : values) {
    bytes += one.nbytes();
    if (rank() != root) receive.push_back({root, one});
    for (int peer = 0; rank() == root && peer < size(); ++peer) {
      if (peer != root) send.push_back({peer, one});
    }
  }
  const State::Logged logged(*state_, "broadcast", caller, bytes);
  state_->exchange(name, send, receive, bytes);
}

std::vector<std::string> Communicator::all_gather_text(const std::string& name, const std::string& text,
                                                       Caller caller) {
  if (!connected()) return {text};
  const State::Logged logged(*state_, "all_gather_object", caller, text.size());
  at::Tensor lengths = host_empty({size()}, at::kLong);
  lengths.mutable_data_ptr<std::int64_t>()[rank()] = static_cast<std::int64_t>(text.size());
  std::vector<at::Tensor> parts;
  for (int peer = 0; peer < size(); ++peer) parts.push_back(lengths.narrow(0, peer, 1));
  all_gather(name + ", lengths", parts);

  std::vector<std::string> texts;
  parts.clear();
  for (int peer = 0; peer < size(); ++peer) {
    texts.emplace_back(static_cast<std::size_t>(lengths.const_data_ptr<std::int64_t>()[peer]), '\0');
  }
  texts[static_cast<std::size_t>(rank())] = text;
  for (std::string& one : texts) {
    parts.push_back(at::from_blob(one.data(), {static_cast<std::int64_t>(one.size())}, at::kByte));
  }
  all_gather(name, parts);
  return texts;
}

void Communicator::tell_failure(const std::string& why) noexcept {
  try {
    if (state_->watchdog) state_->watchdog->tell_failure(why);
  } catch (const std::exception&) {
    // The others will see that this rank is gone.
  }
}

bool Communicator::tell_failure_as_rank_0(const std::string& why, std::chrono::milliseconds patience) noexcept {
  try {
    if (state_->watchdog && rank() > 0) return state_->watchdog->tell_failure_as_rank_0(why, patience);
  } catch (const std::exception&) {
    // This rank leaves all the same: below it tells the others what it still can.
  }
  tell_failure(why);
  return false;
}

Communicator::Hurry::Hurry(Communicator& communicator, std::chrono::milliseconds patience)
    : communicator_(communicator) {
  if (auto& watchdog = communicator_.state_->base().watchdog) {
    watchdog->end_by(std::chrono::steady_clock::now() + patience);
  }
}

Communicator::Hurry::~Hurry() {
  if (auto& watchdog = communicator_.state_->base().watchdog) watchdog->end_by(std::nullopt);
}

}  // namespace capstan
