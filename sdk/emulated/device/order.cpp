#include "device/order.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "device/counts.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"

namespace capstan::emulated {
namespace {

constexpr int kClocks = kDevices * kStreams;

struct Use {
  int clock = 0;  // of the stream
  std::uint64_t time = 0;
  std::string name;
};

/// Bytes [begin, end) of a block, and who wrote or read them last.
struct Past {
  std::size_t begin, end;
  bool write;
  Use use;
  bool meets(std::size_t from, std::size_t to) const { return begin < to && from < end; }
};

using History = std::vector<Past>;

/// Takes the bytes out of what is remembered of a block.
void forget_bytes(History& history, std::size_t begin, std::size_t end) {
  History kept;
  for (const Past& past : history) {
    if (!past.meets(begin, end)) {
      kept.push_back(past);
      continue;
    }
    if (past.begin < begin) kept.push_back({past.begin, begin, past.write, past.use});
    if (past.end > end) kept.push_back({end, past.end, past.write, past.use});
  }
  history = std::move(kept);
}

struct LateCopy {
  Clock until;
  const char* pages;
  std::size_t bytes;
};

struct Order {
  std::vector<Clock> seen = std::vector<Clock>(kClocks, Clock(kClocks, 0));  // by each stream
  Clock host = Clock(kClocks, 0);
  int next[kDevices] = {};
  std::map<const void*, History> histories;  // by block
  std::vector<LateCopy> late;
};

/// Guarded by device_mutex(). Never destroyed: threads may use the device while the process ends.
Order& order() {
  static auto* all = new Order;
  return *all;
}

std::size_t clock_of(int device, int stream) { return static_cast<std::size_t>(device * kStreams + stream); }

void join(Clock& to, const Clock& from) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = std::max(to[i], from[i]);
}

bool has_seen(const Clock& clock, const Use& use) { return clock[static_cast<std::size_t>(use.clock)] >= use.time; }

/// Pages whose copies the host has waited for may be touched again.
void host_knows(const Clock& clock) {
  join(order().host, clock);
  std::erase_if(order().late, [](const LateCopy& copy) {
    for (std::size_t i = 0; i < copy.until.size(); ++i) {
      if (copy.until[i] > order().host[i]) return false;
    }
    mprotect(const_cast<char*>(copy.pages), copy.bytes, PROT_READ | PROT_WRITE);
    return true;
  });
}

thread_local int t_stream[kDevices] = {};

}  // namespace

int current_stream(int device) { return t_stream[device]; }
int exchange_stream(int device, int stream) { return std::exchange(t_stream[device], stream); }

int new_stream(int device) {
  const std::lock_guard lock(device_mutex());
  return 1 + order().next[device]++ % (kStreams - 2);  // not the links' stream
}

void record(Event& event, int device, int stream) {
  const std::lock_guard lock(device_mutex());
  event.seen = order().seen[clock_of(device, stream)];
  event.at_ns = std::chrono::steady_clock::now().time_since_epoch().count();
  event.done = false;
}

void block(const Event& event, int device, int stream) {
  const std::lock_guard lock(device_mutex());
  if (!event.seen.empty()) join(order().seen[clock_of(device, stream)], event.seen);
}

void wait(Event& event, const char* why) {
  const std::lock_guard lock(device_mutex());
  if (!event.seen.empty()) host_knows(event.seen);
  event.done = true;
  note_wait(why);
}

bool query(Event& event) {
  const std::lock_guard lock(device_mutex());
  if (event.seen.empty()) return true;
  if (!std::exchange(event.done, true)) return false;
  host_knows(event.seen);
  return true;
}

void wait_stream(int device, int stream, const char* why) {
  const std::lock_guard lock(device_mutex());
  host_knows(order().seen[clock_of(device, stream)]);
  note_wait(why);
}

void wait_device(int device, const char* why) {
  const std::lock_guard lock(device_mutex());
  for (int stream = 0; stream < kStreams; ++stream) host_knows(order().seen[clock_of(device, stream)]);
  note_wait(why);
}

void record_use(const void* pointer, int device, int stream) {
  const std::lock_guard lock(device_mutex());
  const void* block = block_of(pointer);
  if (block == nullptr) return;
  const int clock = static_cast<int>(clock_of(device, stream));
  std::erase_if(order().histories[block], [&](const Past& past) { return past.use.clock == clock; });
}

void launch(const char* name, int device, int stream, const std::vector<Access>& accesses) {
  const std::lock_guard lock(device_mutex());
  const auto own = static_cast<int>(clock_of(device, stream));
  Clock& seen = order().seen[static_cast<std::size_t>(own)];
  join(seen, order().host);
  const std::uint64_t time = ++seen[static_cast<std::size_t>(own)];
  for (const Access& access : accesses) {
    const void* block = block_of(access.memory);
    if (block == nullptr) continue;
    History& history = order().histories[block];
    const auto begin =
        static_cast<std::size_t>(static_cast<const char*>(access.memory) - static_cast<const char*>(block));
    const std::size_t end = access.bytes == kWholeBlock ? kWholeBlock : begin + access.bytes;
    const auto unordered = [&](const Use& use) { return use.clock != own && !has_seen(seen, use); };
    std::string other;
    for (const Past& past : history) {
      if (!past.meets(begin, end) || !(past.write || access.write) || !unordered(past.use)) continue;
      other = "'" + past.use.name + (past.write ? "' wrote" : "' reads");
    }
    if (!other.empty()) {
      const std::string text = "'" + std::string(name) + "' on stream " + std::to_string(stream) +
                               (access.write ? " writes" : " reads") + " memory that " + other +
                               " on another stream, and nothing orders them";
      report_fault("race", text.c_str());
    }
    if (access.write) {
      forget_bytes(history, begin, end);
    } else {
      std::erase_if(history, [&](const Past& past) {
        return !past.write && past.use.clock == own && begin <= past.begin && past.end <= end;
      });
    }
    history.push_back({begin, end, access.write, {own, time, name}});
  }
}

void begin_late_copy(int device, int stream, const void* memory, bool host_may_read) {
  const std::lock_guard lock(device_mutex());
  const Pages pages = pinned_pages(memory);
  if (pages.begin == nullptr) return;
  order().late.push_back({order().seen[clock_of(device, stream)], pages.begin, pages.bytes});
  mprotect(pages.begin, pages.bytes, host_may_read ? PROT_READ : PROT_NONE);
}

void open_pinned(const void* memory) {
  const std::lock_guard lock(device_mutex());
  if (const Pages pages = pinned_pages(memory); pages.begin != nullptr) {
    mprotect(pages.begin, pages.bytes, PROT_READ | PROT_WRITE);
  }
}

void forget_block(const void* block, int device, int stream, std::size_t bytes) {
  const auto found = order().histories.find(block);
  if (found == order().histories.end()) return;
  // The allocator gives the block to the next who asks on the block's own stream: others must be done with it.
  const auto own = static_cast<int>(clock_of(device, stream));
  const Clock& seen = order().seen[static_cast<std::size_t>(own)];
  const auto late = [&](const Use& use) {
    return use.clock != own && !has_seen(seen, use) && !has_seen(order().host, use);
  };
  std::string by;
  for (const Past& past : found->second) {
    if (late(past.use)) by = past.use.name;
  }
  order().histories.erase(found);
  if (by.empty()) return;
  const std::string text = "memory of " + std::to_string(bytes) + " B is freed while '" + by +
                           "' on another stream may use it; record_stream() would keep it";
  report_fault("race", text.c_str());
}

void forget_pinned(const void* pages) {
  std::erase_if(order().late, [&](const LateCopy& copy) { return copy.pages == pages; });
}

}  // namespace capstan::emulated
