#include <poll.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <system_error>

#include "core/comm/neighbour.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/registry/file_trust.hpp"

namespace capstan {
namespace {

using std::chrono::milliseconds;

std::string reason() { return std::generic_category().message(errno); }

[[noreturn]] void fail(int rank, const std::string& why) {
  throw RuntimeFault("rank " + std::to_string(rank) + ": cannot connect to the processes of this host: " + why +
                     ". CAPSTAN_HOST_MEMORY=off makes them exchange over TCP.");
}

bool switched_off() {
  const char* text = std::getenv("CAPSTAN_HOST_MEMORY");
  const std::string value = text ? text : "on";
  if (value != "on" && value != "off")
    throw RuntimeFault("CAPSTAN_HOST_MEMORY is '" + value + "'; 'on' (the default) or 'off' is meant.");
  return value == "off";
}

/// In place of a host: that of a process which has no neighbours.
constexpr const char* kNowhere = "-";

/// Names the kernel that runs this process, and the networks and process numbers that it sees: where these are equal,
/// sockets of the abstract namespace and process numbers mean the same. kNowhere when that cannot be told.
std::string host_name() {
  std::string name;
  if (!(std::ifstream("/proc/sys/kernel/random/boot_id") >> name)) return kNowhere;
  for (const char* space : {"/proc/self/ns/net", "/proc/self/ns/pid"}) {
    std::error_code error;
    name += "/" + std::filesystem::read_symlink(space, error).string();
    if (error) return kNowhere;
  }
  return name;
}

/// Yama, where it is set to 1, lets a process read only the memory of its children.
void let_neighbours_read(bool allowed) {
  int scope = 0;
  if (std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> scope && scope == 1)
    prctl(PR_SET_PTRACER, allowed ? PR_SET_PTRACER_ANY : 0, 0, 0, 0);
}

/// What a process says of itself.
struct Card {
  std::string host = kNowhere;
  std::string address;  // the socket's, in the abstract namespace
  int process = 0;
  std::uint64_t number = 0;  // random; it stands in its memory at
  std::uint64_t place = 0;

  std::string text() const {
    std::ostringstream out;
    out << host << ' ' << address << ' ' << process << ' ' << number << ' ' << place;
    return out.str();
  }
  static Card parse(const std::string& text) {
    Card card;
    std::istringstream(text) >> card.host >> card.address >> card.process >> card.number >> card.place;
    return card;
  }
};

class Socket {
 public:
  explicit Socket(int number) : number_(number) {}
  ~Socket() {
    if (number_ >= 0) close(number_);
  }
  Socket(Socket&& other) noexcept : number_(other.release()) {}
  int number() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

class Meeting {
 public:
  Meeting(int rank, milliseconds patience)
      : rank_(rank), until_(std::chrono::steady_clock::now() + patience), listening_(open()) {
    // The kernel chooses a free name.
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    socklen_t length = sizeof address;
    if (bind(listening_.number(), reinterpret_cast<sockaddr*>(&address), sizeof address.sun_family) != 0 ||
        listen(listening_.number(), SOMAXCONN) != 0 ||
        getsockname(listening_.number(), reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
        getrandom(&number_, sizeof number_, 0) != sizeof number_) {
      fail(rank_, reason());
    }
    own_.host = host_name();
    own_.address.assign(address.sun_path + 1, length - offsetof(sockaddr_un, sun_path) - 1);
    own_.process = getpid();
    own_.number = number_;
    own_.place = reinterpret_cast<std::uint64_t>(&number_);
  }
  Meeting(const Meeting&) = delete;

  const Card& own() const { return own_; }

  /// To a process of lower rank.
  std::unique_ptr<Neighbour> call(int peer, const Card& card) {
    Socket socket(open());
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    card.address.copy(address.sun_path + 1, sizeof address.sun_path - 1);
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + card.address.size());
    if (connect(socket.number(), reinterpret_cast<sockaddr*>(&address), length) != 0) fail(rank_, reason());
    // The name came from the store, to which other users can write.
    const ucred owner = other_end(socket);
    if (owner.uid != geteuid() || owner.pid != card.process) {
      fail(rank_, "the socket of rank " + std::to_string(peer) + " belongs to " + described(owner.pid, owner.uid) +
                      ", not to " + described(card.process, geteuid()));
    }
    if (::send(socket.number(), &rank_, sizeof rank_, MSG_NOSIGNAL) != sizeof rank_) fail(rank_, reason());
    return agree(std::move(socket), peer, card);
  }

  /// The next process that calls this one.
  std::unique_ptr<Neighbour> answer(const std::map<int, Card>& callers, int& peer) {
    std::string names;
    for (const auto& [caller, card] : callers) names += (names.empty() ? "rank " : ", rank ") + std::to_string(caller);
    while (true) {
      await(listening_.number(), names);
      Socket socket(accept4(listening_.number(), nullptr, nullptr, SOCK_CLOEXEC));
      if (socket.number() < 0) fail(rank_, reason());
      // Names of the abstract namespace are open to everybody.
      const ucred caller = other_end(socket);
      const auto is_caller = [&](const auto& one) { return one.second.process == caller.pid; };
      const bool known = caller.uid == geteuid() && std::any_of(callers.begin(), callers.end(), is_caller);
      if (known && receive(socket, &peer, sizeof peer, names) && callers.contains(peer) &&
          is_caller(*callers.find(peer)))
        return agree(std::move(socket), peer, callers.at(peer));
      log::warning(described(caller.pid, caller.uid) + " called rank " + std::to_string(rank_) +
                   " but is none of its neighbours; it was turned away");
    }
  }

 private:
  static std::string described(int process, uid_t user) {
    return "process " + std::to_string(process) + " of " + user_name(user);
  }

  /// Who listened or connected there, by the kernel's word.
  ucred other_end(const Socket& socket) const {
    ucred other{};
    socklen_t length = sizeof other;
    if (getsockopt(socket.number(), SOL_SOCKET, SO_PEERCRED, &other, &length) != 0) fail(rank_, reason());
    return other;
  }

  int open() const {
    const int number = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (number < 0) fail(rank_, reason());
    return number;
  }

  /// Until there is something of `who`.
  void await(int socket, const std::string& who) const {
    const auto left = std::chrono::duration_cast<milliseconds>(until_ - std::chrono::steady_clock::now());
    pollfd one{socket, POLLIN, 0};
    const int ready = poll(&one, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    if (ready < 0 && errno == EINTR) return await(socket, who);
    if (ready == 0) fail(rank_, "no answer of " + who);
    if (ready < 0) fail(rank_, reason());
  }

  bool receive(const Socket& socket, void* to, std::size_t bytes, const std::string& who) const {
    await(socket.number(), who);
    return recv(socket.number(), to, bytes, 0) == static_cast<ssize_t>(bytes);
  }

  /// Null when one of the two cannot read the other.
  std::unique_ptr<Neighbour> agree(Socket socket, int peer, const Card& card) const {
    std::uint64_t found = 0;
    iovec here{&found, sizeof found}, there{reinterpret_cast<void*>(card.place), sizeof found};
    const bool copied = process_vm_readv(card.process, &here, 1, &there, 1, 0) == sizeof found;
    const bool read = copied && found == card.number;
    if (!read) {
      log::info("the memory of rank " + std::to_string(peer) + " on this host cannot be read (" +
                (copied ? "process " + std::to_string(card.process) + " is another here" : reason()) +
                "): messages to and from it go over TCP");
    }
    const char mine = read ? 'y' : 'n';
    char other = 'n';
    const std::string name = "rank " + std::to_string(peer);
    if (::send(socket.number(), &mine, 1, MSG_NOSIGNAL) != 1 || !receive(socket, &other, 1, name))
      fail(rank_, name + " has gone");
    if (mine != 'y' || other != 'y') return nullptr;
    return std::make_unique<Neighbour>(peer, socket.release(), card.process);
  }

  int rank_;
  std::chrono::steady_clock::time_point until_;
  Socket listening_;
  std::uint64_t number_ = 0;
  Card own_;
};

}  // namespace

std::vector<std::unique_ptr<Neighbour>> meet_neighbours(Transport& texts, int rank, int size, milliseconds patience) {
  const auto key = [](int of) { return "neighbour/" + std::to_string(of); };
  if (switched_off()) {
    texts.publish(key(rank), Card{}.text());
    return {};
  }
  Meeting meeting(rank, patience);
  let_neighbours_read(true);
  texts.publish(key(rank), meeting.own().text());

  std::map<int, Card> lower, higher;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    Card card = Card::parse(texts.read(key(peer), patience));
    if (card.host == kNowhere || card.host != meeting.own().host) continue;
    (peer < rank ? lower : higher).emplace(peer, std::move(card));
  }
  std::vector<std::unique_ptr<Neighbour>> neighbours;
  const auto add = [&](std::unique_ptr<Neighbour> one) {
    if (one) neighbours.push_back(std::move(one));
  };
  for (const auto& [peer, card] : lower) add(meeting.call(peer, card));
  while (!higher.empty()) {
    int peer = 0;
    add(meeting.answer(higher, peer));
    higher.erase(peer);
  }
  // One flag for the whole process, because its other communicators may have neighbours.
  static std::atomic<bool> has_neighbours = false;
  if (!neighbours.empty()) has_neighbours = true;
  if (!has_neighbours) let_neighbours_read(false);
  return neighbours;
}

}  // namespace capstan
