#include "template_plugin.hpp"

#include <capstan/sdk/offload.hpp>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

namespace {

namespace sdk = capstan::sdk;

/// A thread moves what was started, in the order of the calls: so ranges that overlap keep it.
class TemplatePlugin {
 public:
  TemplatePlugin(const sdk::Host&, const sdk::Params& params) : file_(params.text("folder")) {
    thread_ = std::thread([this] { work(); });
  }

  /// What is still queued is dropped; what is being moved ends.
  ~TemplatePlugin() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  sdk::OffloadFacts facts() const { return {sizeof(sdk::OffloadFacts), 1, kInFlight, file_.free_bytes()}; }

  void register_buffer(std::uint64_t buffer_id, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    buffers_[buffer_id] = {file_.reserve(bytes), bytes};
  }

  void release_buffer(std::uint64_t buffer_id) {
    const std::lock_guard lock(mutex_);
    const Buffer buffer = buffer_at(buffer_id);
    file_.release(buffer.begin, buffer.bytes);
    buffers_.erase(buffer_id);
  }

  /// Looks at all ranges before the first is begun: what is thrown here has begun nothing.
  std::uint64_t start(std::span<const sdk::Range> ranges) {
    const std::lock_guard lock(mutex_);
    Job job{tickets_ + 1, {}};
    for (const sdk::Range& range : ranges) {
      const Buffer buffer = buffer_at(range.buffer_id);
      if (range.offset > buffer.bytes || range.bytes > buffer.bytes - range.offset) {
        throw sdk::Error("buffer " + std::to_string(range.buffer_id) + " has " + std::to_string(buffer.bytes) +
                         " bytes, not " + std::to_string(range.bytes) + " at " + std::to_string(range.offset) + ".");
      }
      job.moves.push_back({range, buffer.begin + range.offset});
    }
    queue_.push_back(std::move(job));
    changed_.notify_all();
    return ++tickets_;
  }

  bool poll(std::uint64_t ticket) {
    const std::lock_guard lock(mutex_);
    return ended_.contains(ticket) && end(ticket);
  }

  /// Of the ticket that failed last.
  sdk::OffloadFault fault(std::uint64_t) const { return fault_; }

  /// "about" goes into the line that a run starts with.
  std::string stats() const { return "{\"about\": \"a file, by one thread\"}"; }

 private:
  static constexpr std::uint64_t kInFlight = 4 << 20;  // so much keeps the disk busy

  struct Buffer {
    std::uint64_t begin = 0, bytes = 0;
  };
  struct Move {
    sdk::Range range;
    std::uint64_t place;  // in the file
  };
  struct Job {
    std::uint64_t ticket;
    std::vector<Move> moves;
  };

  Buffer buffer_at(std::uint64_t id) const {
    const auto found = buffers_.find(id);
    if (found == buffers_.end()) throw sdk::Error("there is no buffer " + std::to_string(id) + ".");
    return found->second;
  }

  /// Forgets a ticket, and throws why it failed if it did.
  bool end(std::uint64_t ticket) {
    const sdk::OffloadFault fault = ended_.extract(ticket).mapped();
    if (fault.error == 0) return true;
    fault_ = fault;
    throw sdk::Error(file_.folder() + ": cannot " + (fault.write != 0 ? "write " : "read ") +
                     std::to_string(fault.bytes) + " bytes at " + std::to_string(fault.offset) + " of buffer " +
                     std::to_string(fault.buffer_id) + ", after " + std::to_string(fault.done) +
                     " of them: " + std::strerror(fault.error) + ".");
  }

  /// What went wrong; an errno of 0 when nothing did.
  sdk::OffloadFault carry_out(const Job& job) const {
    sdk::OffloadFault fault{sizeof fault, 0, 0, 0, 0, 0, 0};
    for (const auto& [range, place] : job.moves) {
      std::uint64_t done = 0;
      const int error = file_.move(range.write != 0, range.memory, place, range.bytes, done);
      if (error == 0) continue;
      fault = {sizeof fault, error, range.write, range.buffer_id, range.offset, range.bytes, done};
      break;
    }
    return fault;
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (stop_) return;
      const Job job = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      const sdk::OffloadFault fault = carry_out(job);
      lock.lock();
      ended_[job.ticket] = fault;
      changed_.notify_all();
    }
  }

  TemplatePluginFile file_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Buffer> buffers_;
  std::deque<Job> queue_;
  std::map<std::uint64_t, sdk::OffloadFault> ended_;  // by ticket
  sdk::OffloadFault fault_{};
  std::uint64_t tickets_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::offload<TemplatePlugin, "TemplatePlugin">)
