#include "core/memory/plugin_accelerator.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/memory/tensor_handle.hpp"

namespace capstan {
namespace {

constexpr const char* kOnCpu = "--device cpu (capstan.run.device) trains on the CPU.";

/// The plugin's own words, without where they were said.
std::string reason(const PluginError& error, const std::string& where) {
  const std::string text = error.what();
  return text.starts_with(where + ": ") ? text.substr(where.size() + 2) : text;
}

std::uint32_t count_devices(const PluginAccelerator::Plugin& plugin) {
  std::uint32_t devices = 0;
  try {
    call_plugin(plugin.component.function("count"), plugin.where,
                [&](capstan_error* error) { return plugin.table()->count(plugin.self(), &devices, error); });
  } catch (const PluginError& error) {
    throw RuntimeFault("no " + plugin.component.manifest().type + " device was found: " + reason(error, plugin.where) +
                       ". " + kOnCpu);
  }
  return devices;
}

at::Device choose_device(const PluginAccelerator::Plugin& plugin, int local_rank) {
  const std::uint32_t devices = count_devices(plugin);
  const std::string& type = plugin.component.manifest().type;
  // A launcher may show each process its own device alone.
  const std::uint32_t index = devices == 1 ? 0 : static_cast<std::uint32_t>(local_rank);
  if (index < devices) return at::Device(type + ":" + std::to_string(index));
  throw RuntimeFault("process " + std::to_string(local_rank) + " of this host has no " + type +
                     " device of its own: there are " + std::to_string(devices) +
                     ". Start as many processes as there are devices. " + kOnCpu);
}

std::vector<capstan_message> messages_of(const std::vector<Message>& messages) {
  std::vector<capstan_message> out;
  for (const Message& message : messages) {
    out.push_back({sizeof(capstan_message), static_cast<std::uint32_t>(message.peer), handle_of(message.values)});
  }
  return out;
}

std::vector<const capstan_message*> pointers_to(const std::vector<capstan_message>& messages) {
  std::vector<const capstan_message*> out;
  for (const capstan_message& message : messages) out.push_back(&message);
  return out;
}

using Shared = std::shared_ptr<const PluginAccelerator::Plugin>;

class Event final : public DeviceEvent {
 public:
  explicit Event(Shared plugin) : plugin_(std::move(plugin)) {
    call_plugin(plugin_->component.function("record"), plugin_->where,
                [&](capstan_error* error) { return plugin_->table()->record(plugin_->self(), &raw_, error); });
  }
  ~Event() override {
    const CallInProgress in_progress(plugin_->component.function("forget"));
    plugin_->table()->forget(plugin_->self(), raw_);
  }
  Event(const Event&) = delete;

  double milliseconds_since(const DeviceEvent& earlier) const override {
    double milliseconds = 0;
    call_plugin(plugin_->component.function("elapsed"), plugin_->where, [&](capstan_error* error) {
      return plugin_->table()->elapsed(plugin_->self(), static_cast<const Event&>(earlier).raw_, raw_, &milliseconds,
                                       error);
    });
    return milliseconds;
  }

 private:
  Shared plugin_;
  void* raw_ = nullptr;
};

class UnderWay final : public Exchange {
 public:
  UnderWay(Shared plugin, void* raw) : plugin_(std::move(plugin)), raw_(raw) {}
  ~UnderWay() override {
    const CallInProgress in_progress(plugin_->component.function("end"));
    plugin_->table()->end(plugin_->self(), raw_);
  }
  UnderWay(const UnderWay&) = delete;

  bool wait() override {
    int done = 0;
    try {
      call_plugin(plugin_->component.function("wait"), plugin_->where,
                  [&](capstan_error* error) { return plugin_->table()->wait(plugin_->self(), raw_, &done, error); });
    } catch (const PluginError& error) {
      throw LinkLost(error.what());
    }
    return done != 0;
  }
  void abort() override {
    const CallInProgress in_progress(plugin_->component.function("abort"));
    plugin_->table()->abort(plugin_->self(), raw_);
  }
  std::optional<double> milliseconds() const override {
    if (!CAPSTAN_HAS(plugin_->table(), exchange_milliseconds)) return std::nullopt;
    double milliseconds = 0;
    call_plugin(plugin_->component.function("exchange_milliseconds"), plugin_->where, [&](capstan_error* error) {
      return plugin_->table()->exchange_milliseconds(plugin_->self(), raw_, &milliseconds, error);
    });
    return milliseconds;
  }

 private:
  Shared plugin_;
  void* raw_;
};

class Link final : public DeviceLink {
 public:
  Link(Shared plugin, void* raw) : plugin_(std::move(plugin)), raw_(raw) {}
  ~Link() override {
    const CallInProgress in_progress(plugin_->component.function("disconnect"));
    plugin_->table()->disconnect(plugin_->self(), raw_);
  }
  Link(const Link&) = delete;

  std::unique_ptr<Exchange> start(const std::vector<Message>& send, const std::vector<Message>& receive) override {
    const auto sent = messages_of(send), received = messages_of(receive);
    const auto sends = pointers_to(sent), receives = pointers_to(received);
    void* exchange = nullptr;
    try {
      call_plugin(plugin_->component.function("exchange"), plugin_->where, [&](capstan_error* error) {
        return plugin_->table()->exchange(plugin_->self(), raw_, sends.data(), sends.size(), receives.data(),
                                          receives.size(), &exchange, error);
      });
    } catch (const PluginError& error) {
      throw LinkLost(error.what());
    }
    return std::make_unique<UnderWay>(plugin_, exchange);
  }

 private:
  Shared plugin_;
  void* raw_;
};

class Links final : public DeviceLinks {
 public:
  explicit Links(Shared plugin) : plugin_(std::move(plugin)) {}

  std::string new_id() override {
    return plugin_text(plugin_->component.function("link_id"), plugin_->where,
                       [&](capstan_sink* sink, capstan_error* error) {
                         return plugin_->table()->link_id(plugin_->self(), sink, error);
                       });
  }

  std::unique_ptr<DeviceLink> connect(const std::string& id, int rank, int size,
                                      const std::function<bool()>& given_up) override {
    const capstan_accelerator& table = *plugin_->table();
    const auto of = static_cast<std::uint32_t>(rank), ranks = static_cast<std::uint32_t>(size);
    const auto asked = [](void* question) {
      const auto& given_up = *static_cast<const std::function<bool()>*>(question);
      return given_up && given_up() ? 1 : 0;
    };
    auto* const question = const_cast<std::function<bool()>*>(&given_up);
    void* link = nullptr;
    call_plugin(plugin_->component.function("connect"), plugin_->where + ", rank " + std::to_string(rank),
                [&](capstan_error* error) {
                  return CAPSTAN_HAS(&table, connect_unless)
                             ? table.connect_unless(plugin_->self(), as_str(id), of, ranks, asked, question, &link,
                                                    error)
                             : table.connect(plugin_->self(), as_str(id), of, ranks, &link, error);
                });
    return std::make_unique<Link>(plugin_, link);
  }

 private:
  Shared plugin_;
};

}  // namespace

PluginAccelerator::Plugin::Plugin(Component made)
    : component(std::move(made)), where("accelerator '" + component.manifest().type + "'") {}

PluginAccelerator::PluginAccelerator(Component component, int local_rank)
    : plugin_(std::make_shared<const Plugin>(std::move(component))),
      device_(choose_device(*plugin_, local_rank)),
      copies_(device_),
      links_(CAPSTAN_HAS(plugin_->table(), end) ? std::make_unique<Links>(plugin_) : nullptr) {
  const std::string facts =
      plugin_text(plugin_->component.function("open"), plugin_->where, [&](capstan_sink* sink, capstan_error* error) {
        return plugin_->table()->open(plugin_->self(), static_cast<std::uint32_t>(device_.index()), sink, error);
      });
  log::info("training on " + device_.str() + ": " + facts);
}

at::Tensor PluginAccelerator::allocate(at::IntArrayRef shape, at::ScalarType dtype) const {
  return at::empty(shape, at::TensorOptions().dtype(dtype).device(device_));
}

void PluginAccelerator::copy(at::Tensor& to, const at::Tensor& from) const {
  at::NoGradGuard no_grad;
  to.copy_(from);
}

at::Tensor PluginAccelerator::upload(const at::Tensor& tensor) const {
  if (!tensor.is_cpu() || !CAPSTAN_HAS(plugin_->table(), upload)) return tensor.to(device_);
  capstan_tensor copy = nullptr;
  call_plugin(plugin_->component.function("upload"), plugin_->where + ", upload", [&](capstan_error* error) {
    return plugin_->table()->upload(plugin_->self(), handle_of(tensor), &copy, error);
  });
  return take_tensor(copy);
}

std::vector<at::Tensor> PluginAccelerator::to_host(const std::vector<at::Tensor>& tensors) const {
  const at::NoGradGuard no_grad;
  return copies_.to_host(tensors);
}

std::function<void()> PluginAccelerator::after_this() const {
  const c10::impl::VirtualGuardImpl guard(device_.type());
  const auto event = std::make_shared<c10::Event>(device_.type());
  event->record(guard.getStream(device_));
  return [event, guard, device = device_] { event->block(guard.getStream(device)); };
}

void PluginAccelerator::bind_thread() const {
  if (!CAPSTAN_HAS(plugin_->table(), bind_thread)) return;
  call_plugin(plugin_->component.function("bind_thread"), plugin_->where + ", bind_thread",
              [&](capstan_error* error) { return plugin_->table()->bind_thread(plugin_->self(), error); });
}

std::unique_ptr<DeviceEvent> PluginAccelerator::record() const { return std::make_unique<Event>(plugin_); }

DeviceMemory PluginAccelerator::memory() const {
  capstan_device_memory memory{};
  memory.struct_size = sizeof memory;
  call_plugin(plugin_->component.function("memory"), plugin_->where,
              [&](capstan_error* error) { return plugin_->table()->memory(plugin_->self(), &memory, error); });
  return {memory.in_use, memory.peak, memory.total};
}

}  // namespace capstan
