#pragma once

#include <memory>
#include <string>

#include "capstan/plugin.h"
#include "core/memory/accelerator.hpp"
#include "core/memory/pinned_copies.hpp"
#include "core/registry/registry.hpp"

namespace capstan {

/// A device that a plugin of kind "accelerator" brings. LibTorch's own operators, which its library registers,
/// allocate, copy and compute; the plugin's table has what they do not.
class PluginAccelerator final : public Accelerator {
 public:
  /// Takes device `local_rank` of this host, or the only one that this process sees. The component's host table must
  /// outlive all that is made here. Throws RuntimeFault where there are none, or fewer than processes.
  PluginAccelerator(Component component, int local_rank);

  at::Device device() const override { return device_; }
  at::Tensor allocate(at::IntArrayRef shape, at::ScalarType dtype) const override;
  void copy(at::Tensor& to, const at::Tensor& from) const override;
  at::Tensor upload(const at::Tensor& tensor) const override;
  std::vector<at::Tensor> to_host(const std::vector<at::Tensor>& tensors) const override;
  void bind_thread() const override;
  std::unique_ptr<DeviceEvent> record() const override;
  std::function<void()> after_this() const override;
  void* stream() const override { return plugin_->table()->stream(plugin_->self()); }
  DeviceMemory memory() const override;
  DeviceLinks* links() const override { return links_.get(); }  // null: the plugin has none

  /// The component, which events and links keep: a communicator may outlive its engine.
  struct Plugin {
    explicit Plugin(Component made);
    Component component;
    std::string where;  // "accelerator 'cuda'"
    const capstan_accelerator* table() const { return component.vtable<capstan_accelerator>(); }
    void* self() const { return component.self(); }
  };

 private:
  std::shared_ptr<const Plugin> plugin_;
  at::Device device_;
  mutable PinnedCopies copies_;  // memory alone
  std::unique_ptr<DeviceLinks> links_;
};

}  // namespace capstan
