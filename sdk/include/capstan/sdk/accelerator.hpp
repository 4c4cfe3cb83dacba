#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/sdk/component.hpp"

/// Accelerator: a kind of device to train on. Pinned tier: loading the file brings LibTorch's operators for the device,
/// and here is what they do not have.
///
///   class Cuda {
///    public:
///     Cuda(const sdk::Host&, const sdk::Params&);
///     std::uint32_t count();                     // devices of this process; throws the reason where there is none
///     std::string open(std::uint32_t index);     // chooses one, before all that follows; facts as JSON
///     void* stream();                            // the calling thread's current one
///     sdk::DeviceMemory memory();
///     std::unique_ptr<Event> record();           // the end of the work queued so far; Event is a type of yours
///     double milliseconds(const Event& from, const Event& to);  // waits for both
///
///     // optional: links between the devices of several processes, without which tensors go through host memory
///     std::string link_id();
///     // given_up is asked while it waits, and true ends it with an exception; it may be left out
///     std::unique_ptr<Link> connect(std::string_view id, std::uint32_t rank, std::uint32_t size,
///                                   const sdk::GivenUp& given_up);
///     // with in Link:     std::unique_ptr<Exchange> start(const std::vector<sdk::Message>& send,
///     //                                                   const std::vector<sdk::Message>& receive);
///     // and in Exchange:  bool wait();  void abort() noexcept;
///     // and, optional:    double milliseconds();  // after wait: how long it took on the device
///
///     // optional: makes the device the calling thread's current one
///     void bind_thread();
///     // optional: a copy on the device that the calling thread does not wait for; a handle from sdk::give
///     capstan_tensor upload(capstan_tensor host);
///   };
///   CAPSTAN_PLUGIN(&capstan::sdk::accelerator<Cuda, "cuda">)
namespace capstan::sdk {

/// Bytes; see capstan_device_memory.
struct DeviceMemory {
  std::uint64_t in_use = 0, peak = 0, total = 0;
};

/// A contiguous tensor in the device's memory, to or from rank `peer`.
struct Message {
  int peer;
  capstan_tensor values;
};

/// Whether another process is gone or does not come in time.
class GivenUp {
 public:
  GivenUp(int (*asked)(void*), void* ctx) : asked_(asked), ctx_(ctx) {}
  bool operator()() const { return asked_ && asked_(ctx_) != 0; }

 private:
  int (*asked_)(void*);
  void* ctx_;
};

template <class T>
struct AcceleratorThunks {
  using Self = Instance<T>;
  using Event = typename decltype(std::declval<T&>().record())::element_type;

  static constexpr bool kLinks = requires(T & t) { t.link_id(); };
  static constexpr bool kGivesUp = requires(T & t, std::string_view id, const GivenUp& given_up) {
    t.connect(id, 0, 1, given_up);
  };
  static constexpr bool kTimesExchanges = requires { std::declval<typename T::Exchange&>().milliseconds(); };
  static constexpr bool kBindsThreads = requires(T & t) { t.bind_thread(); };
  static constexpr bool kUploads = requires(T & t, capstan_tensor host) { t.upload(host); };

  static capstan_status count(void* self, std::uint32_t* devices, capstan_error* error) {
    auto& device = *static_cast<Self*>(self);
    return guarded(device.host, error, [&] { *devices = device.object.count(); });
  }
  static capstan_status open(void* self, std::uint32_t index, capstan_sink* facts, capstan_error* error) {
    auto& device = *static_cast<Self*>(self);
    return guarded(device.host, error, [&] { Sink(device.host, facts).write(device.object.open(index)); });
  }
  static void* stream(void* self) { return static_cast<Self*>(self)->object.stream(); }
  static capstan_status memory(void* self, capstan_device_memory* out, capstan_error* error) {
    auto& device = *static_cast<Self*>(self);
    return guarded(device.host, error, [&] {
      const DeviceMemory memory = device.object.memory();
      out->in_use = memory.in_use;
      out->peak = memory.peak;
      out->total = memory.total;
    });
  }

  static capstan_status record(void* self, void** event, capstan_error* error) {
    auto& device = *static_cast<Self*>(self);
    return guarded(device.host, error, [&] { *event = device.object.record().release(); });
  }
  static capstan_status elapsed(void* self, void* from, void* to, double* milliseconds, capstan_error* error) {
    auto& device = *static_cast<Self*>(self);
    return guarded(device.host, error, [&] {
      *milliseconds = device.object.milliseconds(*static_cast<Event*>(from), *static_cast<Event*>(to));
    });
  }
  static void forget(void*, void* event) { delete static_cast<Event*>(event); }

  static std::vector<Message> messages(const capstan_message* const* from, std::size_t count) {
    std::vector<Message> out;
    for (std::size_t i = 0; i < count; ++i) out.push_back({static_cast<int>(from[i]->peer), from[i]->values});
    return out;
  }

  static capstan_status link_id(void* self, capstan_sink* id, capstan_error* error) {
    auto& device = *static_cast<Self*>(self);
    return guarded(device.host, error, [&] { Sink(device.host, id).write(device.object.link_id()); });
  }
  static capstan_status connect(void* self, capstan_str id, std::uint32_t rank, std::uint32_t size, void** link,
                                capstan_error* error) {
    if constexpr (kGivesUp) {
      return connect_unless(self, id, rank, size, nullptr, nullptr, link, error);
    } else {
      auto& device = *static_cast<Self*>(self);
      return guarded(device.host, error, [&] { *link = device.object.connect(to_view(id), rank, size).release(); });
    }
  }
  static capstan_status connect_unless(void* self, capstan_str id, std::uint32_t rank, std::uint32_t size,
                                       int (*given_up)(void*), void* ctx, void** link, capstan_error* error) {
    auto& device = *static_cast<Self*>(self);
    return guarded(device.host, error,
                   [&] { *link = device.object.connect(to_view(id), rank, size, GivenUp(given_up, ctx)).release(); });
  }
  static void disconnect(void*, void* link) { delete static_cast<typename T::Link*>(link); }
  static capstan_status exchange(void* self, void* link, const capstan_message* const* send, std::size_t send_count,
                                 const capstan_message* const* receive, std::size_t receive_count, void** exchange,
                                 capstan_error* error) {
    auto& device = *static_cast<Self*>(self);
    return guarded(device.host, error, [&] {
      *exchange = static_cast<typename T::Link*>(link)
                      ->start(messages(send, send_count), messages(receive, receive_count))
                      .release();
    });
  }
  static capstan_status wait(void* self, void* exchange, int* done, capstan_error* error) {
    auto& device = *static_cast<Self*>(self);
    return guarded(device.host, error, [&] { *done = static_cast<typename T::Exchange*>(exchange)->wait() ? 1 : 0; });
  }
  static capstan_status exchange_milliseconds(void* self, void* exchange, double* milliseconds, capstan_error* error) {
    auto& device = *static_cast<Self*>(self);
    return guarded(device.host, error,
                   [&] { *milliseconds = static_cast<typename T::Exchange*>(exchange)->milliseconds(); });
  }
  static void abort(void*, void* exchange) { static_cast<typename T::Exchange*>(exchange)->abort(); }
  static void end(void*, void* exchange) { delete static_cast<typename T::Exchange*>(exchange); }

  static capstan_status bind_thread(void* self, capstan_error* error) {
    auto& device = *static_cast<Self*>(self);
    return guarded(device.host, error, [&] { device.object.bind_thread(); });
  }
  static capstan_status upload(void* self, capstan_tensor host, capstan_tensor* out, capstan_error* error) {
    auto& device = *static_cast<Self*>(self);
    return guarded(device.host, error, [&] { *out = device.object.upload(host); });
  }

  static constexpr capstan_accelerator vtable() {
    capstan_accelerator table{sizeof(capstan_accelerator), &count, &open, &stream, &memory, &record, &elapsed, &forget};
    if constexpr (kLinks) {
      table.link_id = &link_id;
      table.connect = &connect;
      table.disconnect = &disconnect;
      table.exchange = &exchange;
      table.wait = &wait;
      table.abort = &abort;
      table.end = &end;
      if constexpr (kGivesUp) table.connect_unless = &connect_unless;
      if constexpr (kTimesExchanges) table.exchange_milliseconds = &exchange_milliseconds;
    }
    if constexpr (kBindsThreads) table.bind_thread = &bind_thread;
    if constexpr (kUploads) table.upload = &upload;
    return table;
  }
  static constexpr capstan_accelerator kVtable = vtable();
};

/// The descriptor of accelerator class T.
template <class T, Literal Type>
inline constexpr capstan_component accelerator = describe<T, "accelerator", Type>(&AcceleratorThunks<T>::kVtable);

}  // namespace capstan::sdk
