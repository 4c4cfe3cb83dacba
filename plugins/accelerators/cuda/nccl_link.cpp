// The one file that knows NCCL. LibTorch wraps sends and receives; what it does not wrap is asked of the library that
// it brought, so that this file needs no header of NCCL's and there are never two copies of it in a process.
#include "plugins/accelerators/cuda/nccl_link.hpp"

#include <ATen/cuda/CUDAEvent.h>
#include <dlfcn.h>
#include <torch/csrc/cuda/nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "capstan/sdk/aten.hpp"

namespace capstan::accelerators {
namespace {

namespace nccl = torch::cuda::nccl;

constexpr int kSuccess = 0, kInProgress = 7;  // values of ncclResult_t

/// What LibTorch does not wrap.
struct Library {
  int (*abort)(nccl::ncclComm_t);
  int (*async_error)(nccl::ncclComm_t, int*);
  const char* (*error_text)(int);
  const char* (*last_error)(nccl::ncclComm_t);

  static const Library& get() {
    static const Library library = [] {
      void* handle = ::dlopen("libnccl.so.2", RTLD_NOLOAD | RTLD_NOW);
      const auto symbol = [&](const char* name) {
        void* found = handle ? ::dlsym(handle, name) : nullptr;
        if (!found) throw sdk::Error(std::string("LibTorch's NCCL has no ") + name + ".");
        return found;
      };
      Library filled{};
      filled.abort = reinterpret_cast<decltype(abort)>(symbol("ncclCommAbort"));
      filled.async_error = reinterpret_cast<decltype(async_error)>(symbol("ncclCommGetAsyncError"));
      filled.error_text = reinterpret_cast<decltype(error_text)>(symbol("ncclGetErrorString"));
      filled.last_error = reinterpret_cast<decltype(last_error)>(symbol("ncclGetLastError"));
      return filled;
    }();
    return library;
  }
};

/// A communicator, which an exchange may have to abort.
class Communicator {
 public:
  explicit Communicator(nccl::ncclComm_t raw) : raw_(raw) {}
  ~Communicator() {
    if (aborted_) return;
    try {
      nccl::comm_destroy(raw_);
    } catch (const std::exception&) {
      // The process that it connects to is gone; there is nothing left to tell.
    }
  }
  Communicator(const Communicator&) = delete;

  nccl::ncclComm_t raw() const {
    if (aborted_) throw sdk::Error("NCCL: the link was aborted.");
    return raw_;
  }
  void abort() {
    if (!aborted_.exchange(true)) Library::get().abort(raw_);
  }
  /// Why it broke; empty while it works.
  std::string fault() const {
    int error = kSuccess;
    const int status = Library::get().async_error(raw_, &error);
    if (status != kSuccess) error = status;
    if (error == kSuccess || error == kInProgress) return "";
    const char* detail = Library::get().last_error(raw_);
    return std::string("NCCL: ") + Library::get().error_text(error) +
           (detail && *detail ? std::string(" (") + detail + ")" : "");
  }

 private:
  nccl::ncclComm_t raw_;
  std::atomic<bool> aborted_ = false;
};

class Exchange final : public NcclExchange {
 public:
  Exchange(std::shared_ptr<Communicator> communicator, at::cuda::CUDAEvent done)
      : communicator_(std::move(communicator)), done_(std::move(done)) {}

  bool wait() override {
    using Clock = std::chrono::steady_clock;
    constexpr auto kSpinning = std::chrono::milliseconds(1);  // most exchanges are shorter than a sleep
    const auto begun = Clock::now();
    while (!done_.query()) {
      if (abort_asked_) {
        communicator_->abort();
        return false;
      }
      if (Clock::now() - begun < kSpinning) continue;
      if (const std::string fault = communicator_->fault(); !fault.empty()) {
        communicator_->abort();
        throw sdk::Error(fault);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return true;
  }

  void abort() noexcept override { abort_asked_ = true; }

 private:
  std::shared_ptr<Communicator> communicator_;
  at::cuda::CUDAEvent done_;
  std::atomic<bool> abort_asked_ = false;
};

class Link final : public NcclLink {
 public:
  explicit Link(nccl::ncclComm_t raw)
      : communicator_(std::make_shared<Communicator>(raw)),
        stream_(at::cuda::getStreamFromPool(/*isHighPriority=*/true)) {}

  std::unique_ptr<NcclExchange> start(const std::vector<sdk::Message>& send,
                                      const std::vector<sdk::Message>& receive) override {
    // Nothing that the caller queued before may still be writing, or reading, what travels. What it queues later waits
    // for the exchange because its thread does.
    const nccl::ncclComm_t link = communicator_->raw();
    at::cuda::CUDAEvent ready, done;
    ready.record(at::cuda::getCurrentCUDAStream(stream_.device_index()));
    ready.block(stream_);
    {
      // As one group no rank's order of sends and receives can make another wait in vain.
      const nccl::AutoNcclGroup group;
      for (const sdk::Message& message : receive) {
        at::Tensor values = bytes_of(message);
        if (values.numel() > 0) nccl::recv(values, link, stream_, message.peer);
      }
      for (const sdk::Message& message : send) {
        const at::Tensor values = bytes_of(message);
        if (values.numel() > 0) nccl::send(values, link, stream_, message.peer);
      }
    }
    done.record(stream_);
    return std::make_unique<Exchange>(communicator_, std::move(done));
  }

 private:
  /// What travels is bytes: NCCL knows fewer types than LibTorch.
  static at::Tensor bytes_of(const sdk::Message& message) {
    return sdk::borrow(message.values).view({-1}).view(at::kByte);
  }

  std::shared_ptr<Communicator> communicator_;
  at::cuda::CUDAStream stream_;
};

/// NCCL connects two ranks when they first talk, and waits without end for one that does not come. Here all of them
/// come.
void meet_everyone(NcclLink& link, int size) {
  const at::Tensor told = at::zeros({size}, at::TensorOptions(at::kByte).device(at::kCUDA));
  const at::Tensor heard = at::empty_like(told);
  std::vector<at::Tensor> bytes;
  bytes.reserve(2 * static_cast<std::size_t>(size));
  std::vector<sdk::Message> send, receive;
  for (int peer = 0; peer < size; ++peer) {
    send.push_back({peer, sdk::lend(bytes.emplace_back(told.narrow(0, peer, 1)))});
    receive.push_back({peer, sdk::lend(bytes.emplace_back(heard.narrow(0, peer, 1)))});
  }
  link.start(send, receive)->wait();
}

constexpr char kDigits[] = "0123456789abcdef";

}  // namespace

std::string NcclLink::new_id() {
  nccl::ncclUniqueId id;
  nccl::get_unique_id(id);
  std::string text;
  for (const char byte : id.internal) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

std::unique_ptr<NcclLink> NcclLink::connect(std::string_view id, int rank, int size) {
  nccl::ncclUniqueId raw{};
  if (id.size() != 2 * sizeof raw.internal) throw sdk::Error("the id of an NCCL link has 256 hexadecimal digits.");
  const auto digit = [](char c) { return static_cast<int>(std::find(kDigits, kDigits + 16, c) - kDigits); };
  for (std::size_t i = 0; i < sizeof raw.internal; ++i) {
    raw.internal[i] = static_cast<char>(digit(id[2 * i]) * 16 + digit(id[2 * i + 1]));
  }
  Library::get();  // rather now than when something has to be aborted
  try {
    auto link = std::make_unique<Link>(nccl::comm_init_rank(size, raw, rank));
    meet_everyone(*link, size);
    return link;
  } catch (const std::exception& error) {
    throw sdk::Error(std::string(sdk::sentence(error)) + " Each process needs a GPU of its own.");
  }
}

}  // namespace capstan::accelerators
