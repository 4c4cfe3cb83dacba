#include "device/kernels.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/counts.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "device/order.hpp"

namespace capstan::emulated {
namespace {

struct Kernel {
  std::string name;
  std::map<const void*, bool> blocks;  // those that it has touched: true where it has written
};

thread_local std::unique_ptr<Kernel> t_kernel;

std::mutex& one_kernel() {
  static auto* mutex = new std::mutex;  // threads may use the device while the process ends
  return *mutex;
}

}  // namespace

void begin_kernel(const char* name) {
  one_kernel().lock();
  t_kernel = std::make_unique<Kernel>(Kernel{name, {}});
}

void end_kernel() {
  std::vector<Access> accesses;
  for (const auto& [block, written] : t_kernel->blocks) {
    protect_block(block, Protection::kClosed);
    accesses.push_back({block, written});
  }
  const std::string name = t_kernel->name;
  t_kernel.reset();
  one_kernel().unlock();
  const int device = current_device();
  launch(name.c_str(), device, current_stream(device), accesses);
  const std::lock_guard lock(device_mutex());
  ++counts().kernels;
}

bool let_kernel_touch(const void* pointer) {
  if (!t_kernel) return false;
  const void* block = block_of(pointer);
  if (block == nullptr) return false;
  // Not every processor says whether a fault was a write. An access that faults again, where it may read, is one.
  const auto [touched, is_first] = t_kernel->blocks.try_emplace(block, false);
  if (!is_first && touched->second) return false;
  if (!is_first) touched->second = true;
  protect_block(block, touched->second ? Protection::kWritable : Protection::kReadable);
  return true;
}

const char* running_kernel() { return t_kernel ? t_kernel->name.c_str() : nullptr; }

}  // namespace capstan::emulated
