#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstring>

#include "capstan/sdk/accelerator.hpp"
#include "capstan/sdk/aten.hpp"

namespace capstan::probes {

/// A device that any machine has: its clock counts its events, its links lead back to the process itself.
class PretendDevice {
 public:
  struct Event {
    int number;
  };

  class Exchange {
   public:
    explicit Exchange(bool cable) : cable_(cable) {}
    bool wait() {
      if (!cable_) throw sdk::Error("the cable was cut");
      return !aborted_;
    }
    void abort() noexcept { aborted_ = true; }
    double milliseconds() const { return 2.5; }

   private:
    bool cable_;
    std::atomic<bool> aborted_ = false;
  };

  class Link {
   public:
    explicit Link(bool cable) : cable_(cable) {}
    std::unique_ptr<Exchange> start(const std::vector<sdk::Message>& send, const std::vector<sdk::Message>& receive) {
      for (std::size_t i = 0; i < send.size(); ++i) {
        const at::Tensor& from = sdk::borrow(send[i].values);
        if (receive[i].peer != send[i].peer) throw sdk::Error("message " + std::to_string(i) + " meets nobody");
        std::memcpy(sdk::borrow(receive[i].values).mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
      }
      return std::make_unique<Exchange>(cable_);
    }

   private:
    bool cable_;
  };

  PretendDevice(const sdk::Host&, const sdk::Params& params)
      : devices_(static_cast<std::uint32_t>(params.integer("devices"))), cable_(params.boolean("cable")) {}

  std::uint32_t count() const {
    if (devices_ == 0) throw sdk::Error("the drawer is empty");
    return devices_;
  }
  std::string open(std::uint32_t index) {
    opened_ = index;
    bind_thread();
    return "{\"name\": \"pretended\", \"memory_bytes\": 1000}";
  }
  void bind_thread() { current_ = &opened_; }
  void* stream() { return current_; }
  capstan_tensor upload(capstan_tensor host) {
    ++uploads_;
    return sdk::give(sdk::borrow(host).clone());
  }
  sdk::DeviceMemory memory() const { return {opened_, 7 + uploads_, 1000}; }
  std::unique_ptr<Event> record() { return std::make_unique<Event>(Event{events_++}); }
  double milliseconds(const Event& from, const Event& to) const { return to.number - from.number; }
  std::string link_id() const { return "the way back"; }
  std::unique_ptr<Link> connect(std::string_view id, std::uint32_t rank, std::uint32_t size) const {
    if (id != "the way back" || rank >= size) throw sdk::Error("there is no link '" + std::string(id) + "'");
    return std::make_unique<Link>(cable_);
  }

 private:
  inline static thread_local std::uint32_t* current_ = nullptr;
  std::uint32_t devices_, opened_ = 99;
  std::uint64_t uploads_ = 0;
  bool cable_;
  int events_ = 0;
};

}  // namespace capstan::probes

CAPSTAN_PLUGIN(&capstan::sdk::accelerator<capstan::probes::PretendDevice, "cpu">)
