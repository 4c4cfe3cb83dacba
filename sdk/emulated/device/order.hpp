#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace capstan::emulated {

/// Operators run at once, whatever their stream. Order is checked, not provoked: each stream and the host have a vector
/// clock (Mattern, "Virtual Time and Global States of Distributed Systems", 1989), each block remembers who wrote and
/// read which bytes, and an access that nothing orders behind an earlier one is reported every time, on one core too.
using Clock = std::vector<std::uint64_t>;

int current_stream(int device);
int exchange_stream(int device, int stream);
/// A stream beside the default one; they take turns.
int new_stream(int device);

struct Event {
  Clock seen;  // empty: it was never recorded
  std::int64_t at_ns = 0;
  bool done = false;
};
void record(Event& event, int device, int stream);
/// Orders whatever the stream gets from now on behind the event.
void block(const Event& event, int device, int stream);
/// The host waits; `why` names the wait in the counts.
void wait(Event& event, const char* why);
/// Whether the event has come: never at the first question, as on a busy device.
bool query(Event& event);
void wait_stream(int device, int stream, const char* why);
void wait_device(int device, const char* why);
/// The block's memory is not given again before the stream has come to its present end.
void record_use(const void* pointer, int device, int stream);

inline constexpr std::size_t kWholeBlock = static_cast<std::size_t>(-1);

struct Access {
  const void* memory;
  bool write;
  std::size_t bytes = kWholeBlock;  // from `memory` on
};
/// An operator or a copy on a stream.
void launch(const char* name, int device, int stream, const std::vector<Access>& accesses);

/// A copy between device and pinned memory was put into the stream. Until somebody waits for the copy the host may not
/// touch the memory, or may not write it where `host_may_read`.
void begin_late_copy(int device, int stream, const void* pinned, bool host_may_read);
/// The stream orders a copy behind an earlier one, whose memory the device may touch.
void open_pinned(const void* pinned);

/// For the memory: a block, or pinned memory, is given back.
void forget_block(const void* block, int device, int stream, std::size_t bytes);
void forget_pinned(const void* pages);

}  // namespace capstan::emulated
