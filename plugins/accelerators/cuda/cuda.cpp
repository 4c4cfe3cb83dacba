// NVIDIA's GPUs.
#include <ATen/Context.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include "capstan/sdk/aten.hpp"
#include "plugins/accelerators/cuda/nccl_link.hpp"

namespace capstan::accelerators {
namespace {

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

class Cuda {
 public:
  using Event = at::cuda::CUDAEvent;
  using Link = NcclLink;
  using Exchange = NcclExchange;

  Cuda(const sdk::Host&, const sdk::Params&) {}

  std::uint32_t count() {
    int devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);
    if (status != cudaSuccess) {
      static_cast<void>(cudaGetLastError());  // or the next call would report it
      throw sdk::Error(cudaGetErrorString(status));
    }
    if (devices == 0) throw sdk::Error("the driver shows none to this process; CUDA_VISIBLE_DEVICES may hide them");
    return static_cast<std::uint32_t>(devices);
  }

  std::string open(std::uint32_t index) {
    if (!at::detail::getCUDAHooks().isBuilt()) {
      throw sdk::Error(
          "LibTorch looked for CUDA before this plugin was loaded, and looks once in a process: at the first seed "
          "(torch::manual_seed) or pinned tensor. Call capstan::use_device with the configuration before those.");
    }
    device_ = static_cast<c10::DeviceIndex>(index);
    at::globalContext().lazyInitDevice(at::kCUDA);
    bind_thread();
    cudaDeviceProp facts{};
    C10_CUDA_CHECK(cudaGetDeviceProperties(&facts, device_));
    total_ = facts.totalGlobalMem;
    return "{\"name\": " + quoted(facts.name) + ", \"memory_bytes\": " + std::to_string(total_) + "}";
  }

  void bind_thread() { c10::cuda::set_device(device_); }

  void* stream() { return c10::cuda::getCurrentCUDAStream(device_).stream(); }

  sdk::DeviceMemory memory() {
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device_);
    const auto& bytes = stats.allocated_bytes[0];  // [0] counts all pools together
    return {static_cast<std::uint64_t>(bytes.current), static_cast<std::uint64_t>(bytes.peak), total_};
  }

  /// From pinned memory a copy is only queued; LibTorch keeps that memory until the copy is done.
  capstan_tensor upload(capstan_tensor host) {
    return sdk::give(sdk::borrow(host).pin_memory().to(at::Device(at::kCUDA, device_), /*non_blocking=*/true));
  }

  std::unique_ptr<Event> record() {
    auto event = std::make_unique<Event>(cudaEventDefault);  // the only flag with which an event takes its time
    event->record(c10::cuda::getCurrentCUDAStream(device_));
    return event;
  }

  double milliseconds(const Event& from, const Event& to) {
    from.synchronize();
    to.synchronize();
    return from.elapsed_time(to);
  }

  std::string link_id() { return NcclLink::new_id(); }
  std::unique_ptr<Link> connect(std::string_view id, std::uint32_t rank, std::uint32_t size,
                                const sdk::GivenUp& given_up) {
    return NcclLink::connect(id, static_cast<int>(rank), static_cast<int>(size), given_up);
  }

 private:
  c10::DeviceIndex device_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace
}  // namespace capstan::accelerators

CAPSTAN_PLUGIN(&capstan::sdk::accelerator<capstan::accelerators::Cuda, "cuda">)
