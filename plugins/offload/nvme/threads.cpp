#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

#include "capstan/sdk/component.hpp"
#include "ring.hpp"

namespace capstan::offload {
namespace {

/// Threads that read and write, for kernels that refuse every other way.
class Threads final : public Ring {
 public:
  Threads(int file, unsigned depth, unsigned threads) : file_(file), depth_(depth) {
    // The threads take the mask from here: signals are for threads of the host.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      while (threads_.size() < threads) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
      // Fewer do as well.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (threads_.empty()) throw sdk::Error(std::string("pthread_create says: ") + std::strerror(EAGAIN));
  }
  ~Threads() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    waiting_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Threads(const Threads&) = delete;

  std::string_view name() const override { return "threads"; }
  unsigned depth() const override { return depth_; }

  std::size_t begin(std::span<const Request> requests) override {
    {
      const std::lock_guard lock(mutex_);
      waiting_requests_.insert(waiting_requests_.end(), requests.begin(), requests.end());
    }
    waiting_.notify_all();
    return requests.size();
  }

  void reap(std::size_t at_least, std::vector<Completion>& out) override {
    std::unique_lock lock(mutex_);
    awaited_ = at_least;
    done_.wait(lock, [&] { return completions_.size() >= at_least; });
    awaited_ = 0;
    out.insert(out.end(), completions_.begin(), completions_.end());
    completions_.clear();
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      waiting_.wait(lock, [&] { return stop_ || !waiting_requests_.empty(); });
      if (waiting_requests_.empty()) return;
      const Request request = waiting_requests_.front();
      waiting_requests_.pop_front();
      lock.unlock();
      const std::int64_t result = move(request);
      lock.lock();
      completions_.push_back({request.tag, result});
      if (awaited_ != 0 && completions_.size() >= awaited_) done_.notify_one();
    }
  }

  std::int64_t move(const Request& request) const {
    const auto at = static_cast<off_t>(request.at);
    const ssize_t moved = request.write ? pwrite(file_, request.memory, request.bytes, at)
                                        : pread(file_, request.memory, request.bytes, at);
    return moved < 0 ? -errno : moved;
  }

  int file_;
  unsigned depth_;
  std::mutex mutex_;
  std::condition_variable waiting_, done_;
  std::deque<Request> waiting_requests_;
  std::vector<Completion> completions_;
  std::size_t awaited_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<Ring> make_threads(int file, unsigned depth, unsigned threads) {
  return std::make_unique<Threads>(file, depth, threads);
}

}  // namespace capstan::offload
