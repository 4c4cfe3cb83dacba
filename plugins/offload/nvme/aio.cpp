#include <linux/aio_abi.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <string>

#include "capstan/sdk/component.hpp"
#include "file_limit.hpp"
#include "ring.hpp"

namespace capstan::offload {
namespace {

/// Linux's native asynchronous I/O by its five system calls, which libaio wraps.
class Aio final : public Ring {
 public:
  Aio(int file, unsigned depth) : file_(file), depth_(depth), blocks_(depth), events_(depth) {
    // What fs.aio-max-nr leaves may be less than what is asked for.
    while (syscall(SYS_io_setup, depth_, &context_) != 0) {
      if (errno != EAGAIN || depth_ == 1) throw sdk::Error(std::string("io_setup says: ") + std::strerror(errno));
      depth_ /= 2;
    }
    for (iocb& block : blocks_) free_.push_back(&block);
  }
  ~Aio() override { syscall(SYS_io_destroy, context_); }
  Aio(const Aio&) = delete;

  std::string_view name() const override { return "libaio"; }
  unsigned depth() const override { return depth_; }

  std::size_t begin(std::span<const Request> requests) override {
    std::vector<iocb*> batch;
    for (const Request& request : requests) batch.push_back(prepared(request));
    std::size_t taken = 0;
    const NoFileSizeSignal guard;
    while (taken < batch.size()) {
      const long more = syscall(SYS_io_submit, context_, batch.size() - taken, batch.data() + taken);
      if (more > 0) {
        taken += static_cast<std::size_t>(more);
      } else if (errno == EAGAIN && blocks_.size() - free_.size() > batch.size() - taken) {
        break;  // the kernel has room again when one of those in flight has ended
      } else if (errno != EINTR) {
        failed_.push_back({batch[taken]->aio_data, -errno});
        free_.push_back(batch[taken++]);
      }
    }
    free_.insert(free_.end(), batch.begin() + static_cast<std::ptrdiff_t>(taken), batch.end());
    return taken;
  }

  void reap(std::size_t at_least, std::vector<Completion>& out) override {
    std::size_t found = failed_.size();
    out.insert(out.end(), failed_.begin(), failed_.end());
    failed_.clear();
    timespec at_once{};
    do {
      const std::size_t rest = at_least > found ? at_least - found : 0;
      const long count =
          syscall(SYS_io_getevents, context_, rest, events_.size(), events_.data(), rest == 0 ? &at_once : nullptr);
      if (count < 0 && errno != EINTR)
        throw sdk::Error(std::string("io_getevents says: ") + std::strerror(errno) + ".");
      for (long i = 0; i < count; ++i) {
        const io_event& event = events_[static_cast<std::size_t>(i)];
        out.push_back({event.data, event.res});
        free_.push_back(reinterpret_cast<iocb*>(event.obj));
        ++found;
      }
    } while (found < at_least);
  }

 private:
  iocb* prepared(const Request& request) {
    iocb* block = free_.back();
    free_.pop_back();
    *block = {};
    block->aio_data = request.tag;
    block->aio_lio_opcode = request.write ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD;
    block->aio_fildes = static_cast<__u32>(file_);
    block->aio_buf = reinterpret_cast<std::uintptr_t>(request.memory);
    block->aio_nbytes = request.bytes;
    block->aio_offset = static_cast<__s64>(request.at);
    return block;
  }

  int file_;
  unsigned depth_;
  aio_context_t context_ = 0;
  std::vector<iocb> blocks_;
  std::vector<iocb*> free_;
  std::vector<io_event> events_;
  std::vector<Completion> failed_;
};

}  // namespace

std::unique_ptr<Ring> make_aio(int file, unsigned depth) { return std::make_unique<Aio>(file, depth); }

}  // namespace capstan::offload
