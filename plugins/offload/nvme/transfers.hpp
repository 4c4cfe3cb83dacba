#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "capstan/sdk/offload.hpp"
#include "ring.hpp"
#include "swap_file.hpp"

namespace capstan::offload {

struct Pace {
  std::uint64_t request_bytes;  // the most that one request moves, a multiple of the file's unit
  bool overlap = true;          // false: what is submitted ends before more is submitted
  bool single_submit = false;   // one system call a request
};

struct Traffic {
  std::uint64_t bytes_read = 0, bytes_written = 0, requests = 0;
};

/// Moves ranges of buffers: cut into requests, as many in flight as the ring takes, the rest as those end. Ranges that
/// touch the same units of the file keep the order of their calls when one of them writes. What is not aligned goes
/// through memory of its own, and a write of part of a unit reads that unit first. One call at a time, from any thread.
class Transfers {
 public:
  Transfers(SwapFile& file, std::unique_ptr<Ring> ring, Pace pace);
  ~Transfers();  // waits for what is in flight, and begins nothing more
  Transfers(const Transfers&) = delete;

  /// Throws sdk::Error when there is no room.
  void add_buffer(std::uint64_t id, std::uint64_t bytes);
  void drop_buffer(std::uint64_t id);

  /// Throws sdk::Error for a range outside its buffer; nothing was begun then.
  std::uint64_t start(std::span<const sdk::Range> ranges);
  /// Ends the ticket with sdk::Error when one of its ranges failed.
  bool poll(std::uint64_t ticket);
  /// Of the ticket that failed last.
  sdk::OffloadFault fault(std::uint64_t ticket) const;

  Ring& ring() { return *ring_; }
  const Ring& ring() const { return *ring_; }
  const Traffic& traffic() const { return traffic_; }

 private:
  struct Span;
  struct Ticket {
    std::size_t spans = 0;  // ranges that are not done
    std::optional<sdk::OffloadFault> fault;
    const Span* failed = nullptr;
  };
  struct Span {  // a range on its way
    Ticket* ticket;
    sdk::Range range;
    std::uint64_t at;                 // of its first byte in the file
    std::uint64_t first, last;        // the units of the file that it touches
    std::vector<Span*> followers;     // later ranges that wait for this one
    std::size_t blockers = 0;         // earlier ranges that this one waits for
    std::uint64_t cut = 0, done = 0;  // bytes: handed to pieces, moved
    std::size_t pieces = 0;           // under way
  };
  struct Buffer {
    std::uint64_t at, bytes;
    std::vector<std::unique_ptr<Span>> live;
  };
  struct Piece {  // of a span: one request after the other
    Span* span = nullptr;
    std::byte* host = nullptr;                  // the host's memory
    std::uint64_t bytes = 0;                    // of it
    std::byte* memory = nullptr;                // what the requests use: the host's, or the bounce memory
    std::uint64_t at = 0, size = 0, moved = 0;  // in the file
    std::uint64_t skip = 0;                     // of the bounce memory, before the host's bytes
    bool write = false;  // what the requests do now: a write of part of a unit reads that unit first
    std::unique_ptr<std::byte, void (*)(void*)> bounce{nullptr, nullptr};
  };

  void enqueue(Ticket& ticket, const sdk::Range& range);
  void pump();
  void fill_batch();
  std::size_t submit();
  bool cut_piece(Span& span);
  bool shape(Piece& piece) const;
  bool bounce(Piece& piece);
  Request request_of(std::size_t slot) const;
  void reap(std::size_t at_least);
  void completed(std::size_t slot, std::int64_t result);
  void finish(std::size_t slot);
  void end_if_done(Span& span);
  static void fail(const Piece& piece, int error);
  void end(std::uint64_t id);
  std::string text_of(const sdk::OffloadFault& fault) const;

  SwapFile& file_;
  std::unique_ptr<Ring> ring_;
  Pace pace_;
  Traffic traffic_;
  std::map<std::uint64_t, Buffer> buffers_;
  std::unordered_map<std::uint64_t, Ticket> tickets_;
  std::uint64_t last_ticket_ = 0;
  std::deque<Span*> ready_;          // what can be cut
  std::deque<std::size_t> retries_;  // pieces that have not moved all yet
  std::vector<Piece> pieces_;        // as many as may be in flight
  std::vector<std::size_t> free_;    // of pieces_
  std::vector<Request> batch_;
  std::vector<Completion> completions_;
  std::size_t in_flight_ = 0, bounces_ = 0;
  std::pair<std::uint64_t, sdk::OffloadFault> last_fault_{};
};

}  // namespace capstan::offload
