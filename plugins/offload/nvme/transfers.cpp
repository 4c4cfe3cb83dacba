#include "transfers.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

namespace capstan::offload {
namespace {

constexpr std::uint64_t kBounceBytes = 256 << 10;
constexpr std::size_t kMostBounces = 16;
constexpr std::size_t kPage = 4096;

std::uint64_t down(std::uint64_t value, std::uint64_t unit) { return value / unit * unit; }
std::uint64_t up(std::uint64_t value, std::uint64_t unit) { return down(value + unit - 1, unit); }

}  // namespace

Transfers::Transfers(SwapFile& file, std::unique_ptr<Ring> ring, Pace pace)
    : file_(file), ring_(std::move(ring)), pace_(pace), pieces_(ring_->depth()) {
  for (std::size_t i = pieces_.size(); i-- > 0;) free_.push_back(i);
}

Transfers::~Transfers() {
  try {
    while (in_flight_ > 0) {
      completions_.clear();
      ring_->reap(in_flight_, completions_);
      in_flight_ -= completions_.size();
    }
  } catch (const sdk::Error&) {
    // The ring itself is refused; closing it waits for what the kernel has.
  }
}

void Transfers::add_buffer(std::uint64_t id, std::uint64_t bytes) {
  const std::string what = "buffer " + std::to_string(id);
  if (buffers_.contains(id)) throw sdk::Error(what + " is registered already.");
  buffers_.emplace(id, Buffer{file_.reserve(what, bytes), bytes, {}});
}

void Transfers::drop_buffer(std::uint64_t id) {
  const auto found = buffers_.find(id);
  if (found == buffers_.end()) throw sdk::Error("buffer " + std::to_string(id) + " is not registered.");
  if (!found->second.live.empty()) throw sdk::Error("buffer " + std::to_string(id) + " has transfers in flight.");
  file_.release(found->second.at, found->second.bytes);
  buffers_.erase(found);
}

std::uint64_t Transfers::start(std::span<const sdk::Range> ranges) {
  for (const sdk::Range& range : ranges) {
    const auto found = buffers_.find(range.buffer_id);
    const std::uint64_t bytes = found == buffers_.end() ? 0 : found->second.bytes;
    if (found == buffers_.end() || range.offset > bytes || range.bytes > bytes - range.offset) {
      throw sdk::Error("range of " + std::to_string(range.bytes) + " bytes at offset " + std::to_string(range.offset) +
                       " is outside buffer " + std::to_string(range.buffer_id) + ", which has " +
                       std::to_string(bytes) + ".");
    }
  }
  const std::uint64_t id = ++last_ticket_;
  Ticket& ticket = tickets_[id];
  for (const sdk::Range& range : ranges) {
    if (range.bytes > 0) enqueue(ticket, range);
  }
  reap(0);
  pump();
  return id;
}

void Transfers::enqueue(Ticket& ticket, const sdk::Range& range) {
  Buffer& buffer = buffers_.at(range.buffer_id);
  const std::uint64_t at = buffer.at + range.offset, unit = file_.alignment();
  auto span = std::make_unique<Span>(Span{&ticket, range, at, down(at, unit), up(at + range.bytes, unit), {}});
  for (const auto& earlier : buffer.live) {
    const bool meet = earlier->first < span->last && span->first < earlier->last;
    if (!meet || (earlier->range.write == 0 && range.write == 0)) continue;
    earlier->followers.push_back(span.get());
    ++span->blockers;
  }
  ++ticket.spans;
  if (span->blockers == 0) ready_.push_back(span.get());
  buffer.live.push_back(std::move(span));
}

bool Transfers::poll(std::uint64_t id) {
  const auto found = tickets_.find(id);
  if (found == tickets_.end()) throw sdk::Error("ticket " + std::to_string(id) + " has ended already.");
  reap(0);
  pump();
  if (found->second.spans > 0) return false;
  end(id);
  return true;
}

void Transfers::end(std::uint64_t id) {
  const Ticket ticket = std::move(tickets_.extract(id).mapped());
  if (!ticket.fault) return;
  last_fault_ = {id, *ticket.fault};
  throw sdk::Error(text_of(*ticket.fault));
}

sdk::OffloadFault Transfers::fault(std::uint64_t ticket) const {
  if (last_fault_.first != ticket || ticket == 0) {
    throw sdk::Error("ticket " + std::to_string(ticket) + " is not the one that failed last.");
  }
  return last_fault_.second;
}

/// Hands the ring what it has room for.
void Transfers::pump() {
  if (!pace_.overlap && in_flight_ > 0) return;
  while (true) {
    fill_batch();
    if (batch_.empty() || submit() < batch_.size()) return;
  }
}

void Transfers::fill_batch() {
  batch_.clear();
  while (!retries_.empty()) {
    batch_.push_back(request_of(retries_.front()));
    retries_.pop_front();
  }
  while (!ready_.empty()) {
    Span& span = *ready_.front();
    if (!span.ticket->fault && span.cut < span.range.bytes) {
      if (!cut_piece(span)) return;
      continue;
    }
    ready_.pop_front();
    span.cut = span.range.bytes;  // nothing more of a ticket that has failed
    end_if_done(span);
  }
}

/// Returns how many requests of the batch the ring took; the others wait for the next time.
std::size_t Transfers::submit() {
  std::size_t taken = 0;
  const std::size_t step = pace_.single_submit ? 1 : batch_.size();
  while (taken < batch_.size()) {
    const std::size_t more = ring_->begin(std::span(batch_).subspan(taken, step));
    taken += more;
    if (more < step) break;
  }
  in_flight_ += taken;
  traffic_.requests += taken;
  for (std::size_t i = batch_.size(); i-- > taken;) retries_.push_front(batch_[i].tag);
  return taken;
}

/// Puts the next piece of the span into the batch; false when there is no room for it now.
bool Transfers::cut_piece(Span& span) {
  if (free_.empty()) return false;
  Piece piece;
  piece.span = &span;
  const bool direct = shape(piece);
  if (!direct && bounces_ == kMostBounces) return false;
  if (!direct && !bounce(piece)) {
    fail(piece, ENOMEM);
    return true;
  }
  const std::size_t slot = free_.back();
  free_.pop_back();
  span.cut += piece.bytes;
  ++span.pieces;
  pieces_[slot] = std::move(piece);
  batch_.push_back(request_of(slot));
  return true;
}

/// As much as can go from here in one request: directly where memory and file are aligned; else false, and it takes
/// bounce memory.
bool Transfers::shape(Piece& piece) const {
  const Span& span = *piece.span;
  const std::uint64_t unit = file_.alignment(), rest = span.range.bytes - span.cut;
  piece.write = span.range.write != 0;
  piece.host = piece.memory = static_cast<std::byte*>(span.range.memory) + span.cut;
  piece.at = span.at + span.cut;
  const std::uint64_t to_unit = up(piece.at, unit) - piece.at;
  const bool in_step = (reinterpret_cast<std::uintptr_t>(piece.memory) + to_unit) % unit == 0;
  if (in_step && to_unit == 0 && rest >= unit) {
    piece.bytes = piece.size = std::min(pace_.request_bytes, down(rest, unit));
    return true;
  }
  // Where memory and file are in step, this is the head or the tail, and what lies between goes directly.
  const std::uint64_t most = in_step ? unit : std::max(down(std::min(kBounceBytes, pace_.request_bytes), unit), unit);
  const std::uint64_t first = down(piece.at, unit);
  piece.skip = piece.at - first;
  piece.bytes = std::min(rest, most - piece.skip);
  piece.size = up(piece.skip + piece.bytes, unit);
  piece.at = first;
  return false;
}

bool Transfers::bounce(Piece& piece) {
  piece.bounce = {static_cast<std::byte*>(std::aligned_alloc(kPage, up(piece.size, kPage))), &std::free};
  if (!piece.bounce) return false;
  ++bounces_;
  piece.memory = piece.bounce.get();
  if (!piece.write) return true;
  // A write that covers its units whole has nothing to keep of them.
  if (piece.bytes < piece.size)
    piece.write = false;
  else
    std::memcpy(piece.memory, piece.host, piece.bytes);
  return true;
}

Request Transfers::request_of(std::size_t slot) const {
  const Piece& piece = pieces_[slot];
  return {piece.memory + piece.moved, piece.size - piece.moved, piece.at + piece.moved, slot, piece.write};
}

void Transfers::reap(std::size_t at_least) {
  completions_.clear();
  ring_->reap(at_least, completions_);
  for (const Completion& completion : completions_) completed(completion.tag, completion.result);
}

void Transfers::completed(std::size_t slot, std::int64_t result) {
  --in_flight_;
  Piece& piece = pieces_[slot];
  if (result == -EAGAIN || result == -EINTR) return retries_.push_back(slot);
  // Direct I/O goes on where a unit begins.
  const auto moved = result > 0 ? down(static_cast<std::uint64_t>(result), file_.alignment()) : 0;
  (piece.write ? traffic_.bytes_written : traffic_.bytes_read) += moved;
  piece.moved += moved;
  if (!piece.bounce) piece.span->done += moved;
  if (moved == 0) {
    fail(piece, result < 0 ? static_cast<int>(-result) : 0);
    return finish(slot);
  }
  if (piece.moved < piece.size) return retries_.push_back(slot);
  const bool wanted_write = piece.span->range.write != 0;
  if (piece.bounce && !wanted_write) std::memcpy(piece.host, piece.memory + piece.skip, piece.bytes);
  if (piece.write == wanted_write) {
    if (piece.bounce) piece.span->done += piece.bytes;
    return finish(slot);
  }
  std::memcpy(piece.memory + piece.skip, piece.host, piece.bytes);
  piece.write = true;
  piece.moved = 0;
  retries_.push_back(slot);
}

void Transfers::finish(std::size_t slot) {
  const Piece piece = std::move(pieces_[slot]);
  free_.push_back(slot);
  if (piece.bounce) --bounces_;
  --piece.span->pieces;
  // A span that is still to be cut ends where it is met in the queue.
  if (piece.span->cut == piece.span->range.bytes) end_if_done(*piece.span);
}

void Transfers::end_if_done(Span& span) {
  if (span.pieces > 0) return;
  file_.leave_cache(span.first, span.last - span.first);
  for (Span* follower : span.followers) {
    if (--follower->blockers == 0) ready_.push_back(follower);
  }
  Ticket& ticket = *span.ticket;
  if (ticket.failed == &span) ticket.fault->done = span.done;
  --ticket.spans;
  auto& live = buffers_.at(span.range.buffer_id).live;
  live.erase(std::find_if(live.begin(), live.end(), [&](const auto& each) { return each.get() == &span; }));
}

/// The first failure is the ticket's.
void Transfers::fail(const Piece& piece, int error) {
  Ticket& ticket = *piece.span->ticket;
  if (ticket.fault) return;
  const sdk::Range& range = piece.span->range;
  ticket.failed = piece.span;
  ticket.fault =
      sdk::OffloadFault{sizeof(sdk::OffloadFault), error, range.write, range.buffer_id, range.offset, range.bytes, 0};
}

std::string Transfers::text_of(const sdk::OffloadFault& fault) const {
  std::string text = "nvme_path '" + file_.folder().string() + "': " + (fault.write != 0 ? "writing " : "reading ") +
                     std::to_string(fault.bytes) + " bytes at offset " + std::to_string(fault.offset) + " of buffer " +
                     std::to_string(fault.buffer_id) + " failed after " + std::to_string(fault.done) + " bytes: ";
  if (fault.error == 0) return text + "the file gives no more. Another program has cut it: start the run again.";
  text += std::strerror(fault.error);
  if (fault.error == ENOSPC || fault.error == EDQUOT) {
    return text + ", the file system has " + bytes_text(file_.free_bytes()) + ". Free some, or use a larger disk.";
  }
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  if (fault.error == EFBIG && limit.rlim_cur != RLIM_INFINITY) {
    return text + ", the limit of a file's size is " + bytes_text(limit.rlim_cur) + ". Raise it: ulimit -f unlimited.";
  }
  if (fault.error == EIO) return text + ". The disk or its driver fails: the kernel's log (dmesg) says more.";
  return text + ".";
}

}  // namespace capstan::offload
