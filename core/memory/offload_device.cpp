#include "core/memory/offload_device.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/text/json.hpp"
#include "core/text/numbers.hpp"

namespace capstan {
namespace {

constexpr std::chrono::microseconds kShortestSleep{20}, kLongestSleep{1000};

}  // namespace

OffloadTraffic& OffloadTraffic::operator+=(const OffloadTraffic& other) {
  read_bytes += other.read_bytes;
  written_bytes += other.written_bytes;
  wait_seconds += other.wait_seconds;
  transfers += other.transfers;
  return *this;
}

OffloadDevice::OffloadDevice(Component component, std::chrono::milliseconds patience)
    : component_(std::move(component)), where_("offload '" + component_.manifest().type + "'"), patience_(patience) {
  ask_facts();
}

OffloadDevice::~OffloadDevice() {
  try {
    while (!given_up_ && !transfers_.empty()) {
      const Ticket first = transfers_.begin()->first;
      wait_until_ended(first);
      transfers_.erase(first);
    }
  } catch (const std::exception& error) {
    log::warning(error.what());
  }
  // To destroy the component would wait for its storage for ever.
  if (given_up_) new Component(std::move(component_));
}

void OffloadDevice::ask_facts() {
  if (!CAPSTAN_HAS(vtable(), facts)) return;
  capstan_offload_facts facts{};
  facts.struct_size = sizeof facts;
  facts.alignment = 1;
  facts.free_bytes = UINT64_MAX;
  call_plugin(component_.function("facts"), where_ + ", facts",
              [&](capstan_error* error) { return vtable()->facts(component_.self(), &facts, error); });
  const std::uint64_t alignment = facts.alignment;
  if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
    throw PluginError(where_ + ", facts: the alignment is " + std::to_string(alignment) +
                      "; it must be a power of two. Tell the plugin's author.");
  }
  alignment_ = std::max(alignment_, alignment);
  in_flight_bytes_ = facts.in_flight_bytes;
  free_bytes_ = facts.free_bytes;
}

void OffloadDevice::require_room(std::uint64_t bytes, const std::string& what) {
  if (bytes <= free_bytes_) return;
  throw RuntimeFault(where_ + ": " + what + " need " + bytes_text(bytes) + ", and there is room for " +
                     bytes_text(free_bytes_) + " at " + about() + ". Make room, or choose another place.");
}

std::uint64_t OffloadDevice::add_buffer(std::uint64_t bytes, std::string holds) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t id = holds_.size();
  try {
    call_plugin(component_.function("register_buffer"), where_,
                [&](capstan_error* error) { return vtable()->register_buffer(component_.self(), id, bytes, error); });
  } catch (const PluginError& error) {
    throw RuntimeFault(std::string(error.what()) + " It was to hold " + holds + ".");
  }
  holds_.push_back(std::move(holds));
  reserved_ += bytes;
  return id;
}

void OffloadDevice::lend(void* memory, std::uint64_t bytes) {
  if (!CAPSTAN_HAS(vtable(), lend)) return;
  const std::lock_guard lock(mutex_);
  try {
    call_plugin(component_.function("lend"), where_,
                [&](capstan_error* error) { return vtable()->lend(component_.self(), memory, bytes, error); });
  } catch (const PluginError& error) {
    log::warning(std::string(error.what()) + " This costs speed alone.");
  }
}

bool OffloadDevice::take_back(void* memory) noexcept {
  const std::lock_guard lock(mutex_);
  if (given_up_) return false;
  if (!CAPSTAN_HAS(vtable(), take_back)) return true;
  const CallInProgress in_progress(component_.function("take_back"));
  vtable()->take_back(component_.self(), memory);
  return true;
}

std::uint64_t OffloadDevice::start_ranges(std::span<const Range> ranges) {
  std::vector<capstan_range> list;
  std::vector<const capstan_range*> pointers;
  for (const Range& range : ranges) {
    list.push_back({sizeof(capstan_range), range.write, range.buffer, range.offset, range.bytes, range.memory});
  }
  for (const capstan_range& range : list) pointers.push_back(&range);
  std::uint64_t ticket = 0;
  call_plugin(component_.function("start"), where_, [&](capstan_error* error) {
    return vtable()->start(component_.self(), pointers.data(), pointers.size(), &ticket, error);
  });
  return ticket;
}

OffloadDevice::Ticket OffloadDevice::start(std::span<const Range> ranges) {
  const std::lock_guard lock(mutex_);
  if (given_up_) std::rethrow_exception(given_up_);
  Transfer transfer;
  try {
    transfer.ticket = start_ranges(ranges);
  } catch (const PluginError& error) {
    throw RuntimeFault(std::string(error.what()) + " It was to move " + holds_[ranges.front().buffer] +
                       ". The last checkpoint is as it was.");
  }
  for (const Range& range : ranges) {
    transfer.bytes += range.bytes;
    (range.write ? traffic_.written_bytes : traffic_.read_bytes) += range.bytes;
  }
  ++traffic_.transfers;
  if (transfers_.empty()) progress_ = Clock::now();
  transfers_.emplace(++started_, std::move(transfer));
  return started_;
}

/// What the range that failed held.
std::string OffloadDevice::lost(std::uint64_t ticket) {
  if (!CAPSTAN_HAS(vtable(), fault)) return "";
  capstan_offload_fault fault{};
  fault.struct_size = sizeof fault;
  fault.buffer_id = UINT64_MAX;
  capstan_error unused;
  const CallInProgress in_progress(component_.function("fault"));
  if (vtable()->fault(component_.self(), ticket, &fault, &unused) != CAPSTAN_OK) return "";
  if (fault.buffer_id >= holds_.size()) return "";
  return " These were " + holds_[fault.buffer_id] + ", bytes " + std::to_string(fault.offset) + " to " +
         std::to_string(fault.offset + fault.bytes) + ".";
}

bool OffloadDevice::poll(std::uint64_t ticket) {
  int done = 0;
  call_plugin(component_.function("poll"), where_,
              [&](capstan_error* error) { return vtable()->poll(component_.self(), ticket, &done, error); });
  return done != 0;
}

/// Whether it has ended.
bool OffloadDevice::move_on(Transfer& transfer) {
  if (!transfer.failure) transfer.failure = given_up_;
  if (transfer.failure) return true;
  try {
    if (!poll(transfer.ticket)) return false;
  } catch (const PluginError& error) {
    transfer.failure = std::make_exception_ptr(RuntimeFault(std::string(error.what()) + lost(transfer.ticket) +
                                                            " The last checkpoint is as it was: resume from it."));
  }
  progress_ = Clock::now();
  return true;
}

bool OffloadDevice::ended(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  const auto found = transfers_.find(ticket);
  if (found == transfers_.end()) return true;
  if (!move_on(found->second)) return false;
  if (!found->second.failure) transfers_.erase(found);
  return true;
}

void OffloadDevice::give_up() {
  std::uint64_t in_flight = 0, bytes = 0;
  for (const auto& [unused, transfer] : transfers_) {
    if (transfer.failure) continue;
    ++in_flight;
    bytes += transfer.bytes;
  }
  const std::string place = about();
  given_up_ = std::make_exception_ptr(
      RuntimeFault(where_ + ": " + std::to_string(in_flight) + (in_flight == 1 ? " transfer" : " transfers") + " of " +
                   bytes_text(bytes) + " in flight for " +
                   std::to_string(std::chrono::duration_cast<std::chrono::seconds>(patience_).count()) + " s" +
                   (place.empty() ? "" : " at " + place) +
                   ", and none has ended. Is the storage still there? The last checkpoint is as it was."));
  std::rethrow_exception(given_up_);
}

void OffloadDevice::wait_until_ended(Ticket ticket) {
  if (ended(ticket)) return;
  const auto begun = Clock::now();
  Clock::duration sleep = kShortestSleep;
  while (!ended(ticket)) {
    {
      const std::lock_guard lock(mutex_);
      const auto now = Clock::now();
      if (now - std::max(progress_, begun) > patience_) give_up();
      // Short transfers are noticed soon, and long ones cost few looks.
      sleep = std::clamp<Clock::duration>((now - begun) / 16, kShortestSleep, kLongestSleep);
    }
    std::this_thread::sleep_for(sleep);
  }
  const std::lock_guard lock(mutex_);
  traffic_.wait_seconds += std::chrono::duration<double>(Clock::now() - begun).count();
}

void OffloadDevice::wait(Ticket ticket) {
  wait_until_ended(ticket);
  const std::lock_guard lock(mutex_);
  if (const auto found = transfers_.find(ticket); found != transfers_.end()) {
    std::rethrow_exception(found->second.failure);
  }
}

OffloadTraffic OffloadDevice::traffic() const {
  const std::lock_guard lock(mutex_);
  return traffic_;
}

std::string OffloadDevice::about() const {
  if (!CAPSTAN_HAS(vtable(), stats)) return "";
  const std::string text = plugin_text(
      component_.function("stats"), where_ + ", stats",
      [&](capstan_sink* sink, capstan_error* error) { return vtable()->stats(component_.self(), sink, error); });
  const Json stats = Json::parse(text);
  const Json* about = stats.is_object() ? stats.find("about") : nullptr;
  return about && about->is_string() ? about->as_string() : "";
}

}  // namespace capstan
