#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "capstan/sdk/component.hpp"

/// Offload: keeps bytes outside memory. Raw pointers and byte counts; needs nothing of LibTorch.
///
///   class Files {
///    public:
///     Files(capstan::sdk::Host host, const capstan::sdk::Params& params);
///     void register_buffer(std::uint64_t buffer_id, std::uint64_t bytes);  // once, before its first transfer
///     std::uint64_t start(std::span<const capstan::sdk::Range> ranges);    // all of them at once; a ticket
///     bool poll(std::uint64_t ticket);  // whether it is done, never blocks; throws with errno's text, offset and path
///     // All that follows is optional.
///     capstan::sdk::OffloadFacts facts();                   // before register_buffer
///     void lend(void* memory, std::uint64_t bytes);         // transfers will use it again and again: pin, register
///     void take_back(void* memory) noexcept;
///     capstan::sdk::OffloadFault fault(std::uint64_t ticket);  // of a ticket that failed, right after it was ended
///     void release_buffer(std::uint64_t buffer_id);         // its bytes are not needed any more
///     std::string stats() const;                            // JSON
///   };
///   CAPSTAN_PLUGIN(&capstan::sdk::offload<Files, "files">)
///
/// Memory belongs to the host, which leaves it alone until the ticket is done. Ranges of one buffer that overlap keep
/// the order of their calls: a read gives what the last write before it wrote; nothing else keeps any order. A transfer
/// that comes short goes on in here. Each ticket is ended once, by a poll that says done or throws. Calls come one at a
/// time, from any thread. The destructor returns when nothing touches the host's memory any more.
namespace capstan::sdk {

using Range = capstan_range;
using OffloadFacts = capstan_offload_facts;
using OffloadFault = capstan_offload_fault;

template <class T>
struct OffloadThunks {
  using Self = Instance<T>;

  static capstan_status register_buffer(void* self, std::uint64_t buffer_id, std::uint64_t bytes,
                                        capstan_error* error) {
    return call(self, error, [&](T& object) { object.register_buffer(buffer_id, bytes); });
  }

  static capstan_status stats(void* self, capstan_sink* sink, capstan_error* error) {
    auto& offload = *static_cast<Self*>(self);
    return guarded(offload.host, error, [&] {
      if constexpr (kCounts) Sink(offload.host, sink).write(offload.object.stats());
    });
  }

  static capstan_status facts(void* self, capstan_offload_facts* out, capstan_error* error) {
    return call(self, error, [&](T& object) {
      if constexpr (kFacts) {
        // The host may know less than this SDK, or more.
        OffloadFacts facts = object.facts();
        facts.struct_size = out->struct_size;
        std::memcpy(out, &facts, std::min<std::size_t>(out->struct_size, sizeof facts));
      }
    });
  }

  static capstan_status lend(void* self, void* memory, std::uint64_t bytes, capstan_error* error) {
    return call(self, error, [&](T& object) {
      if constexpr (kPins) object.lend(memory, bytes);
    });
  }

  static void take_back(void* self, void* memory) {
    if constexpr (kPins) static_cast<Self*>(self)->object.take_back(memory);
  }

  static capstan_status start(void* self, const capstan_range* const* ranges, std::size_t count, std::uint64_t* ticket,
                              capstan_error* error) {
    return call(self, error, [&](T& object) {
      std::vector<Range> list(count);
      for (std::size_t i = 0; i < count; ++i) {
        std::memcpy(&list[i], ranges[i], std::min<std::size_t>(ranges[i]->struct_size, sizeof(Range)));
      }
      *ticket = object.start(std::span<const Range>(list));
    });
  }

  static capstan_status poll(void* self, std::uint64_t ticket, int* done, capstan_error* error) {
    return call(self, error, [&](T& object) { *done = object.poll(ticket) ? 1 : 0; });
  }

  static capstan_status fault(void* self, std::uint64_t ticket, capstan_offload_fault* out, capstan_error* error) {
    return call(self, error, [&](T& object) {
      if constexpr (kFaults) {
        OffloadFault fault = object.fault(ticket);
        fault.struct_size = out->struct_size;
        std::memcpy(out, &fault, std::min<std::size_t>(out->struct_size, sizeof fault));
      }
    });
  }

  static capstan_status release_buffer(void* self, std::uint64_t buffer_id, capstan_error* error) {
    return call(self, error, [&](T& object) {
      if constexpr (kReleases) object.release_buffer(buffer_id);
    });
  }

  static constexpr bool kCounts = requires(const T& t) {
    { t.stats() } -> std::convertible_to<std::string>;
  };
  static constexpr bool kFacts = requires(T & t) {
    { t.facts() } -> std::convertible_to<OffloadFacts>;
  };
  static constexpr bool kPins = requires(T & t, void* memory) {
    t.lend(memory, std::uint64_t{});
    t.take_back(memory);
  };
  static constexpr bool kFaults = requires(T & t) {
    { t.fault(std::uint64_t{}) } -> std::convertible_to<OffloadFault>;
  };
  static constexpr bool kReleases = requires(T & t) { t.release_buffer(std::uint64_t{}); };

  static constexpr capstan_offload kVtable = {sizeof(capstan_offload),
                                              &register_buffer,
                                              &start,
                                              &poll,
                                              kCounts ? &stats : nullptr,
                                              kFacts ? &facts : nullptr,
                                              kPins ? &lend : nullptr,
                                              kPins ? &take_back : nullptr,
                                              kFaults ? &fault : nullptr,
                                              kReleases ? &release_buffer : nullptr};

 private:
  template <class Body>
  static capstan_status call(void* self, capstan_error* error, Body&& body) {
    auto& offload = *static_cast<Self*>(self);
    return guarded(offload.host, error, [&] { std::forward<Body>(body)(offload.object); });
  }
};

/// The descriptor of offload class T.
template <class T, Literal Type>
inline constexpr capstan_component offload = describe<T, "offload", Type>(&OffloadThunks<T>::kVtable);

}  // namespace capstan::sdk
