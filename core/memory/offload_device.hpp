#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "capstan/plugin.h"
#include "core/registry/registry.hpp"

namespace capstan {

/// What went to and from a store since the run began.
struct OffloadTraffic {
  std::uint64_t read_bytes = 0, written_bytes = 0;
  double wait_seconds = 0;  // in which a thread of the engine had nothing to do but wait
  std::uint64_t transfers = 0;

  OffloadTraffic& operator+=(const OffloadTraffic& other);
};

/// The host's side of a component of kind "offload". [any]
///
/// A transfer that fails is told with what the buffer held, now and whenever its ticket is waited for again. One that
/// does not end within the patience is given up: the component is then neither called nor destroyed any more, because
/// it may still touch the memory that it was given.
class OffloadDevice {
 public:
  /// `patience`: the longest time in which no transfer ends, while one is waited for.
  explicit OffloadDevice(Component component, std::chrono::milliseconds patience = std::chrono::minutes(1));
  /// Waits for what is under way.
  ~OffloadDevice();
  OffloadDevice(const OffloadDevice&) = delete;

  struct Range {
    std::uint64_t buffer, offset, bytes;
    void* memory;
    bool write;  // from memory to the buffer
  };
  using Ticket = std::uint64_t;

  const std::string& type() const { return component_.manifest().type; }
  /// Bytes: memory, offsets and lengths that are multiples of it travel without a copy.
  std::uint64_t alignment() const { return alignment_; }
  /// Bytes under way that keep the storage busy; 0: not known.
  std::uint64_t in_flight_bytes() const { return in_flight_bytes_; }
  /// Throws RuntimeFault unless there is room for so many bytes. `what` will be kept: "optimizer states".
  void require_room(std::uint64_t bytes, const std::string& what);
  /// Makes room for a buffer. `holds` names what is in it in messages: "optimizer states of tile 3". Throws
  /// RuntimeFault.
  std::uint64_t add_buffer(std::uint64_t bytes, std::string holds);
  /// Says that transfers will use this memory, until it is taken back. take_back: false where the component was given
  /// up and may still use the memory, which must then stay.
  void lend(void* memory, std::uint64_t bytes);
  bool take_back(void* memory) noexcept;

  /// Starts to move all of the ranges. Throws RuntimeFault; nothing was begun then.
  Ticket start(std::span<const Range> ranges);
  /// Whether the transfer has ended, well or not.
  bool ended(Ticket ticket);
  /// Waits for the end. Throws RuntimeFault where it failed.
  void wait(Ticket ticket);

  OffloadTraffic traffic() const;
  /// Bytes of all buffers.
  std::uint64_t reserved_bytes() const { return reserved_; }
  /// What the component says of itself in one line; "" where it says nothing.
  std::string about() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Transfer {
    std::uint64_t ticket = 0;  // the component's
    std::uint64_t bytes = 0;
    std::exception_ptr failure;
  };
  const capstan_offload* vtable() const { return component_.vtable<capstan_offload>(); }
  void ask_facts();
  std::uint64_t start_ranges(std::span<const Range> ranges);
  bool move_on(Transfer& transfer);
  bool poll(std::uint64_t ticket);
  std::string lost(std::uint64_t ticket);
  void wait_until_ended(Ticket ticket);
  [[noreturn]] void give_up();

  Component component_;
  std::string where_;
  std::chrono::milliseconds patience_;
  std::uint64_t alignment_ = 64, in_flight_bytes_ = 0, free_bytes_ = UINT64_MAX;
  mutable std::mutex mutex_;  // one call at a time; guards what follows
  std::vector<std::string> holds_;
  std::map<Ticket, Transfer> transfers_;  // under way, or failed
  Ticket started_ = 0;
  Clock::time_point progress_ = Clock::now();  // when a transfer began while there was none, or the last one ended
  std::uint64_t reserved_ = 0;
  OffloadTraffic traffic_;
  std::exception_ptr given_up_;  // why; null: it is in use
};

}  // namespace capstan
