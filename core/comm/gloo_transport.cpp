// The one file that knows LibTorch's c10d.

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>

#include "core/comm/agreed_start.hpp"
#include "core/comm/attendance.hpp"
#include "core/comm/no_name_server.hpp"
#include "core/comm/port_file.hpp"
#include "core/comm/socket_patience.hpp"
#include "core/comm/transport.hpp"
#include "core/errors.hpp"

#define USE_C10D_GLOO
#include <c10/util/Logging.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace capstan {
namespace {

using std::chrono::milliseconds;

/// Beyond every patience of ours: who gives up is decided above.
constexpr milliseconds kForever = std::chrono::hours(24 * 365);

/// How often gloo tries to connect to a process.
constexpr int kGlooAttempts = 5;

/// How long rank 0 of a passing place may take to answer: c10d waits for ever for a host that stands still. Together
/// with the 2 s that a watchdog waits for a text it is less than the 5 s after which such a host counts as lost.
constexpr milliseconds kStoreAnswers{2000};

/// How long processes that cannot connect have to say that they are there.
constexpr milliseconds kAnswering = std::chrono::seconds(2);

/// LibTorch's messages carry a stack trace behind the first line.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

/// While one lives, c10d does not log: each of its calls that fails logs a warning with a stack trace before it throws,
/// and what it throws becomes a sentence. Where TORCH_CPP_LOG_LEVEL is set, that decides. [any thread]
class Quiet {
 public:
  Quiet() {
    const std::lock_guard lock(mutex_);
    if (alive_++ > 0 || std::getenv("TORCH_CPP_LOG_LEVEL") != nullptr) return;
    before_ = std::exchange(FLAGS_caffe2_log_level, c10::GLOG_FATAL);
  }
  ~Quiet() {
    const std::lock_guard lock(mutex_);
    if (--alive_ == 0 && before_) FLAGS_caffe2_log_level = *std::exchange(before_, std::nullopt);
  }
  Quiet(const Quiet&) = delete;

 private:
  static inline std::mutex mutex_;
  static inline int alive_ = 0;
  static inline std::optional<int> before_;
};

std::string place(const Rendezvous& rendezvous) { return rendezvous.address + ":" + std::to_string(rendezvous.port); }

/// `where`: " (address:port)", or nothing.
std::string gone_text(const std::string& where, const std::exception& error) {
  return "rank 0, which keeps the place where the processes meet" + where + ", is gone: " + first_line(error);
}

std::string gone_text(const Rendezvous& rendezvous, const std::exception& error) {
  return "rank " + std::to_string(rendezvous.rank) + ": " + gone_text(" (" + place(rendezvous) + ")", error);
}

/// A key of the store that only rank 0 sets, and only when its port is told through a file.
constexpr const char* kSecretKey = "capstan/secret";

/// A socket at a free port of an address of this host.
std::pair<int, int> listen_at(const std::string& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int unknown = getaddrinfo(address.c_str(), nullptr, &hints, &found);
  std::string why = unknown != 0 ? gai_strerror(unknown) : "it has no address";
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    const int number = socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, 0);
    if (number >= 0 && bind(number, one->ai_addr, one->ai_addrlen) == 0 && listen(number, SOMAXCONN) == 0 &&
        getsockname(number, reinterpret_cast<sockaddr*>(&own), &length) == 0) {
      freeaddrinfo(found);
      const bool new_family = own.ss_family == AF_INET6;
      return {number, ntohs(new_family ? reinterpret_cast<sockaddr_in6*>(&own)->sin6_port
                                       : reinterpret_cast<sockaddr_in*>(&own)->sin_port)};
    }
    why = std::generic_category().message(errno);
    if (number >= 0) close(number);
  }
  if (found != nullptr) freeaddrinfo(found);
  throw RuntimeFault("rank 0: cannot listen at " + address + ": " + why + ".");
}

/// Throws when what listens at the port is not the store of rank 0 that wrote the file.
void check_secret(c10d::TCPStore& store, const Rendezvous& rendezvous, const std::string& secret) {
  if (store.check({kSecretKey}) && store.get_to_str(kSecretKey) == secret) return;
  throw RuntimeFault("rank " + std::to_string(rendezvous.rank) + ": what listens at " + place(rendezvous) +
                     " is not rank 0 of this start, though '" + rendezvous.port_file +
                     "' names that port. Start the processes again.");
}

/// c10d tries to connect as long as `patience`, also where rank 0 is gone and another start has taken its place.
void await_listener(const Rendezvous& rendezvous, milliseconds patience) {
  constexpr milliseconds kOne{500}, kAgain{20};
  const auto until = std::chrono::steady_clock::now() + patience;
  while (!listens_at(rendezvous.address, rendezvous.port, kOne)) {
    if (rendezvous.given_up() || std::chrono::steady_clock::now() > until) {
      throw RuntimeFault("rank " + std::to_string(rendezvous.rank) + ": nobody listens at " + place(rendezvous) +
                         ", where rank 0 was.");
    }
    std::this_thread::sleep_for(kAgain);
  }
}

/// `port_file`: of a start that meets through one; null otherwise.
c10::intrusive_ptr<c10d::TCPStore> open_store(Rendezvous& rendezvous, PortFile* port_file, milliseconds patience) {
  c10d::TCPStoreOptions options;
  options.isServer = rendezvous.rank == 0 && !rendezvous.store_exists;
  options.timeout = patience;
  options.waitWorkers = false;
  if (options.isServer && rendezvous.listening_socket >= 0) options.masterListenFd = rendezvous.listening_socket;
  PortEntry entry;
  if (port_file && options.isServer) {
    std::tie(options.masterListenFd, entry.port) = listen_at(rendezvous.address);
    entry.secret = random_secret();
  } else if (port_file) {
    entry = port_file->read(patience, rendezvous.given_up);
  }
  if (port_file) rendezvous.port = entry.port;
  options.port = static_cast<std::uint16_t>(rendezvous.port);
  if (!options.isServer && rendezvous.given_up) await_listener(rendezvous, patience);
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(rendezvous.address, options);
    if (port_file && options.isServer) {
      store->set(kSecretKey, {entry.secret.begin(), entry.secret.end()});
      port_file->write(entry);
    } else if (port_file) {
      check_secret(*store, rendezvous, entry.secret);
    }
    return store;
  } catch (const c10::Error& error) {
    throw RuntimeFault("rank " + std::to_string(rendezvous.rank) +
                       (options.isServer ? ": cannot listen at " : ": cannot reach rank 0 at ") + place(rendezvous) +
                       (options.isServer ? ". Is the port taken? " : ". Has it started, and is the address right? ") +
                       "MASTER_ADDR and MASTER_PORT say where. (" + first_line(error) + ")");
  }
}

/// Where the processes of a run meet. It is opened once a process: rank 0's end of it serves the others until the
/// process ends, or as long as the transport where the place is a passing one.
struct MeetingPlace {
  std::mutex opening;
  c10::intrusive_ptr<c10d::TCPStore> store;
  int port = 0;
  bool numeric = false;  // its address
  bool passing = false;
  std::string start;  // which start of the processes this is, where the store has seen others
  int starts = 0;     // counts the starts in this process, whose keys must not meet

  /// Another connection to rank 0, like `one`.
  c10::intrusive_ptr<c10d::Store> clone(c10d::Store& one) const {
    const NoNameServer quick(numeric);
    auto another = one.clone();
    if (passing) limit_waits_for_port(port, kStoreAnswers);
    return another;
  }
};

/// The same place for every start of this process as this rank; never destroyed, because communicators that are static
/// objects of a program use it until the end. [any thread]
std::shared_ptr<MeetingPlace> meeting_place(const Rendezvous& rendezvous) {
  if (rendezvous.passing) {
    auto place = std::make_shared<MeetingPlace>();
    place->passing = true;
    return place;
  }
  static std::mutex mutex;
  static auto& places = *new std::map<std::string, std::shared_ptr<MeetingPlace>>;
  const std::lock_guard lock(mutex);
  auto& found = places[std::to_string(rendezvous.rank) + "@" + place(rendezvous) + "/" + rendezvous.port_file];
  if (!found) found = std::make_shared<MeetingPlace>();
  return found;
}

/// The address of this host that the others can reach: the one from which the way to rank 0 leads.
std::string own_address(const Rendezvous& rendezvous) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(rendezvous.address.c_str(), std::to_string(rendezvous.port).c_str(), &hints, &found) != 0) return "";
  std::string text;
  for (const addrinfo* one = found; one != nullptr && text.empty(); one = one->ai_next) {
    const int probe = socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, 0);
    if (probe < 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    char name[NI_MAXHOST];
    // Connecting a datagram socket sends nothing; it only chooses the way.
    if (connect(probe, one->ai_addr, one->ai_addrlen) == 0 &&
        getsockname(probe, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&own), length, name, sizeof name, nullptr, 0, NI_NUMERICHOST) == 0) {
      text = name;
    }
    close(probe);
  }
  freeaddrinfo(found);
  return text;
}

std::shared_ptr<gloo::transport::Device> find_device(const Rendezvous& rendezvous) {
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME")) {
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  }
  const std::string address = own_address(rendezvous);
  if (address.empty()) return c10d::ProcessGroupGloo::createDefaultDevice();
  return c10d::ProcessGroupGloo::createDeviceForHostname(address);
}

class GlooExchange final : public Exchange {
 public:
  struct Part {
    int peer;
    c10::intrusive_ptr<c10d::Work> work;
  };

  explicit GlooExchange(std::vector<Part> parts) : parts_(std::move(parts)) {}

  bool wait() override {
    std::optional<PeerLost> lost;
    bool done = true;
    for (const Part& part : parts_) {
      try {
        done = part.work->wait(kForever) && done;
      } catch (const std::exception& error) {
        if (!lost) lost.emplace(part.peer, first_line(error));
        // The caller takes its memory back: nothing else may wait to be written there.
        abort();
      }
    }
    if (lost) throw *lost;
    return done;
  }

  void abort() override {
    for (const Part& part : parts_) part.work->abort();
  }

 private:
  std::vector<Part> parts_;
};

class GlooTransport final : public Transport {
 public:
  GlooTransport(std::shared_ptr<MeetingPlace> meeting, c10::intrusive_ptr<c10d::Store> store,
                c10::intrusive_ptr<c10d::ProcessGroupGloo> group, std::shared_ptr<gloo::transport::Device> device,
                milliseconds patience)
      : meeting_(std::move(meeting)),
        store_(std::move(store)),
        group_(std::move(group)),
        device_(std::move(device)),
        patience_(patience) {}
  ~GlooTransport() override {
    const Quiet quiet;
    group_.reset();
    store_.reset();
    meeting_.reset();
  }

  /// Connects the processes that meet in the store. Each of gloo's attempts at a connection takes `patience` at most.
  static std::shared_ptr<GlooTransport> connect(std::shared_ptr<MeetingPlace> meeting,
                                                c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                std::shared_ptr<gloo::transport::Device> device,
                                                milliseconds patience) {
    const Quiet quiet;
    const auto options = c10d::ProcessGroupGloo::Options::create(patience);
    options->devices.push_back(device);
    const auto gloo_store = c10::make_intrusive<c10d::PrefixStore>("gloo", store);
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(gloo_store, rank, size, options);
    group->setTimeout(kForever);
    return std::make_shared<GlooTransport>(std::move(meeting), std::move(store), std::move(group), std::move(device),
                                           patience);
  }

  std::unique_ptr<Exchange> start(std::uint32_t tag, const std::vector<Message>& send,
                                  const std::vector<Message>& receive) override {
    std::vector<GlooExchange::Part> parts;
    // Gloo does not promise to keep the order of messages of one tag, so each has one of its own.
    std::map<std::pair<int, bool>, std::uint32_t> counts;
    const auto add = [&](const Message& message, bool incoming) {
      const std::uint32_t index = counts[{message.peer, incoming}]++;
      if (message.values.numel() == 0) return;
      const int own_tag = static_cast<int>((tag + index * 0x9E3779B1u) & 0x7fffffff);
      std::vector<at::Tensor> tensors{message.values};
      try {
        parts.push_back({message.peer, incoming ? group_->recv(tensors, message.peer, own_tag)
                                                : group_->send(tensors, message.peer, own_tag)});
      } catch (const std::exception& error) {
        throw PeerLost(message.peer, first_line(error));
      }
    };
    for (const Message& message : receive) add(message, true);
    for (const Message& message : send) add(message, false);
    return std::make_unique<GlooExchange>(std::move(parts));
  }

  void publish(const std::string& key, const std::string& text) override {
    ask("'" + key + "' cannot be told: ", [&] { store_->set(key, text); });
  }

  std::string read(const std::string& key, milliseconds patience) override {
    std::string text;
    ask("'" + key + "' was not told in time: ", [&] {
      store_->wait({key}, patience);
      text = store_->get_to_str(key);
    });
    return text;
  }

  std::shared_ptr<Transport> duplicate_for_thread(const std::string& purpose) override {
    const Quiet quiet;
    try {
      auto store = c10::make_intrusive<c10d::PrefixStore>(purpose, meeting_->clone(*store_));
      auto another = connect(meeting_, std::move(store), group_->getRank(), group_->getSize(), device_, patience_);
      if (meeting_->passing) retransmit_often();
      return another;
    } catch (const std::exception& error) {
      throw RuntimeFault("rank " + std::to_string(group_->getRank()) + ": cannot connect to the other processes for " +
                         purpose + ": " + first_line(error));
    }
  }

  std::shared_ptr<Transport> for_thread() override {
    const Quiet quiet;
    try {
      return std::make_shared<GlooTransport>(meeting_, meeting_->clone(*store_), nullptr, device_, patience_);
    } catch (const std::exception& error) {
      throw RuntimeFault(gone_text("", error));
    }
  }

 private:
  /// After an answer that did not come in time the next one might be its answer: the store is not asked again.
  void ask(const std::string& otherwise, const std::function<void()>& question) {
    const Quiet quiet;
    try {
      if (out_of_reach_) throw RuntimeFault("rank 0 has not answered before");
      question();
    } catch (const c10::DistNetworkError& error) {
      out_of_reach_ = true;
      throw RuntimeFault(otherwise + first_line(error));
    } catch (const std::exception& error) {
      throw RuntimeFault(otherwise + first_line(error));
    }
  }

  bool out_of_reach_ = false;  // one thread at a time asks
  std::shared_ptr<MeetingPlace> meeting_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  std::shared_ptr<gloo::transport::Device> device_;
  milliseconds patience_;  // with another process, while a connection is made
};

std::string missing_text(int rank, const Rendezvous& rendezvous, milliseconds patience) {
  return "rank " + std::to_string(rank) + " of " + std::to_string(rendezvous.size) + " has not appeared at " +
         place(rendezvous) + " within " + std::to_string(patience.count() / 1000) +
         " s. Was it started, and did it fail at once?";
}

Attendance::Board board_of(const c10::intrusive_ptr<c10d::Store>& store) {
  const auto tell = [store](const std::string& key, const std::string& text) { store->set(key, text); };
  const auto look = [store](const std::string& key) -> std::optional<std::string> {
    if (!store->check({key})) return std::nullopt;
    return store->get_to_str(key);
  };
  return {tell, look};
}

/// The prefix of all keys of a start in `meeting`.
std::string prefix_of(const MeetingPlace& meeting) {
  return "capstan/" + meeting.start + "/" + std::to_string(meeting.starts);
}

/// Finds out which start this is in a store that outlives starts. Throws RuntimeFault where rank 0 does not say.
AgreedStart agree_on_start(MeetingPlace& meeting, const Rendezvous& rendezvous, milliseconds patience) {
  const auto store = c10::make_intrusive<c10d::PrefixStore>("capstan", meeting.clone(*meeting.store));
  AgreedStart agreed({board_of(store), [store](const std::string& key) { return store->add(key, 1); }}, rendezvous.rank,
                     rendezvous.size);
  const auto number = agreed.number(patience);
  if (!number) throw RuntimeFault(missing_text(0, rendezvous, patience));
  meeting.start = *number;
  return agreed;
}

/// The texts of this start alone. Fills in the port, and `port_file` when this start opens the meeting place and tells
/// its port through a file, and `agreed` when it is the first of these processes in a store that outlives them. [any
/// thread]
c10::intrusive_ptr<c10d::Store> store_of_start(MeetingPlace& meeting, Rendezvous& rendezvous,
                                               std::optional<PortFile>& port_file, std::optional<AgreedStart>& agreed,
                                               milliseconds patience, milliseconds connection) {
  // Ranks of one process that are threads open places of their own: rank 1 waits for rank 0's port.
  const std::lock_guard lock(meeting.opening);
  if (!meeting.store) {
    if (rendezvous.port == 0) port_file.emplace(rendezvous.port_file);
    meeting.numeric = is_numeric_address(rendezvous.address);
    const NoNameServer quick(meeting.numeric);
    meeting.store = open_store(rendezvous, port_file ? &*port_file : nullptr, patience);
    meeting.port = rendezvous.port;
    // Further connections to it are tried for so long, without a question whether the meeting is over.
    if (meeting.passing) meeting.store->setTimeout(connection);
  }
  rendezvous.port = meeting.port;
  ++meeting.starts;
  try {
    if (rendezvous.store_exists && meeting.start.empty()) agreed = agree_on_start(meeting, rendezvous, patience);
    return c10::make_intrusive<c10d::PrefixStore>(prefix_of(meeting), meeting.clone(*meeting.store));
  } catch (const RuntimeFault&) {
    throw;
  } catch (const std::exception& error) {
    throw RuntimeFault(gone_text(rendezvous, error));
  }
}

Attendance attendance_in(const c10::intrusive_ptr<c10d::Store>& store, const Rendezvous& rendezvous) {
  return {board_of(store), rendezvous.rank, rendezvous.size};
}

std::shared_ptr<gloo::transport::Device> open_device(const Rendezvous& rendezvous, Attendance& attendance) {
  try {
    return find_device(rendezvous);
  } catch (const std::exception& error) {
    const std::string why =
        "no network to connect over: " + first_line(error) + ". GLOO_SOCKET_IFNAME names the network interface to use.";
    attendance.stopped(why);
    throw RuntimeFault("rank " + std::to_string(rendezvous.rank) + ": " + why);
  }
}

/// Waits a while for the key. False where it has not come, and may come yet. Throws DistStoreError where it is not
/// waited for any more.
bool waited_for(c10d::Store& store, const std::string& key, const std::function<bool()>& given_up,
                std::chrono::steady_clock::time_point until) {
  constexpr milliseconds kAskAgain{50};
  const auto left = std::chrono::duration_cast<milliseconds>(until - std::chrono::steady_clock::now());
  const bool last = !given_up || left <= kAskAgain;
  try {
    store.wait({key}, std::max(last ? left : kAskAgain, milliseconds(1)));
    return true;
  } catch (const c10::DistStoreError&) {
    if (last || given_up()) throw;
    return false;
  }
}

/// Throws RuntimeFault where one has not come when `patience`, which ends `until`, is over, or has stopped.
void await_arrivals(c10d::Store& store, Attendance& attendance, const Rendezvous& rendezvous, milliseconds patience,
                    std::chrono::steady_clock::time_point until) {
  for (int rank = 0; rank < rendezvous.size; ++rank) {
    try {
      while (!waited_for(store, Attendance::key_of(rank), rendezvous.given_up, until)) {
      }
    } catch (const c10::DistStoreError&) {
      const std::string why = missing_text(rank, rendezvous, patience);
      const std::string table = attendance.table();
      attendance.stopped(why);
      throw RuntimeFault(why + table);
    } catch (const std::exception& error) {
      throw RuntimeFault(gone_text(rendezvous, error));
    }
  }
  attendance.check();
}

}  // namespace

std::shared_ptr<Transport> connect_gloo(const Rendezvous& rendezvous_given, milliseconds patience,
                                        milliseconds connection) {
  const Quiet quiet;
  Rendezvous rendezvous = rendezvous_given;
  std::optional<PortFile> port_file;
  const auto until = std::chrono::steady_clock::now() + patience;
  std::optional<AgreedStart> agreed;
  const auto meeting = meeting_place(rendezvous);
  const auto store = store_of_start(*meeting, rendezvous, port_file, agreed, patience, connection);
  Attendance attendance = attendance_in(store, rendezvous);
  attendance.arrived();
  if (agreed && rendezvous.rank == 0) {
    agreed->answer([&](int rank) { return store->check({Attendance::key_of(rank)}); },
                   std::chrono::duration_cast<milliseconds>(until - std::chrono::steady_clock::now()));
  }
  await_arrivals(*store, attendance, rendezvous, patience, until);
  port_file.reset();  // everybody has read it

  const auto device = open_device(rendezvous, attendance);
  try {
    // Where the others give up earlier, a process that still tries misses their next attempts.
    const milliseconds each = rendezvous.passing ? connection / kGlooAttempts : connection;
    const auto transport = GlooTransport::connect(meeting, store, rendezvous.rank, rendezvous.size, device, each);
    if (rendezvous.passing) retransmit_often();
    attendance.connected();
    return transport;
  } catch (const std::exception& error) {
    throw RuntimeFault("rank " + std::to_string(rendezvous.rank) +
                       ": cannot connect to the other processes: " + first_line(error) + "." +
                       attendance.table_of_answers(rendezvous.passing ? milliseconds(0) : kAnswering));
  }
}

}  // namespace capstan
