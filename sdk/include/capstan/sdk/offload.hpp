#pragma once

#include <concepts>
#include <type_traits>

#include "capstan/sdk/component.hpp"

/// Offload: keeps bytes outside memory. Raw pointers and byte counts; needs nothing of LibTorch.
///
///   class Files {
///    public:
///     Files(capstan::sdk::Host host, const capstan::sdk::Params& params);
///     void register_buffer(std::uint64_t buffer_id, std::uint64_t bytes);   // once, before its first transfer
///     std::uint64_t write_async(std::uint64_t buffer_id, const void* from, std::uint64_t bytes);  // a ticket
///     std::uint64_t read_async(std::uint64_t buffer_id, void* to, std::uint64_t bytes);           // a ticket
///     void wait(std::uint64_t ticket);    // `from` is free again, or `to` is full; throws with errno's text and path
///     std::string stats() const;          // optional, JSON
///   };
///   CAPSTAN_PLUGIN(&capstan::sdk::offload<Files, "files">)
///
/// Transfers of one buffer are ordered: a read gives what the last write before it wrote. Those of different buffers
/// may overlap and end in any order. Each ticket is waited for once. All calls come from the engine's thread.
namespace capstan::sdk {

template <class T>
struct OffloadThunks {
  using Self = Instance<T>;

  static capstan_status register_buffer(void* self, std::uint64_t buffer_id, std::uint64_t bytes,
                                        capstan_error* error) {
    auto& offload = *static_cast<Self*>(self);
    return guarded(offload.host, error, [&] { offload.object.register_buffer(buffer_id, bytes); });
  }

  static capstan_status write_async(void* self, std::uint64_t buffer_id, const void* from, std::uint64_t bytes,
                                    std::uint64_t* ticket, capstan_error* error) {
    auto& offload = *static_cast<Self*>(self);
    return guarded(offload.host, error, [&] { *ticket = offload.object.write_async(buffer_id, from, bytes); });
  }

  static capstan_status read_async(void* self, std::uint64_t buffer_id, void* to, std::uint64_t bytes,
                                   std::uint64_t* ticket, capstan_error* error) {
    auto& offload = *static_cast<Self*>(self);
    return guarded(offload.host, error, [&] { *ticket = offload.object.read_async(buffer_id, to, bytes); });
  }

  static capstan_status wait(void* self, std::uint64_t ticket, capstan_error* error) {
    auto& offload = *static_cast<Self*>(self);
    return guarded(offload.host, error, [&] { offload.object.wait(ticket); });
  }

  static capstan_status stats(void* self, capstan_sink* sink, capstan_error* error) {
    auto& offload = *static_cast<Self*>(self);
    return guarded(offload.host, error, [&] {
      if constexpr (kCounts) Sink(offload.host, sink).write(offload.object.stats());
    });
  }

  static constexpr bool kCounts = requires(const T& t) {
    { t.stats() } -> std::convertible_to<std::string>;
  };

  static constexpr capstan_offload kVtable = {
      sizeof(capstan_offload), &register_buffer, &write_async, &read_async, &wait, kCounts ? &stats : nullptr};
};

/// The descriptor of offload class T.
template <class T, Literal Type>
inline constexpr capstan_component offload = describe<T, "offload", Type>(&OffloadThunks<T>::kVtable);

}  // namespace capstan::sdk
