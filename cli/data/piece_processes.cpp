#include "cli/data/piece_processes.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "cli/data/data_output.hpp"
#include "core/errors.hpp"
#include "core/process/child.hpp"

namespace capstan::cli {
namespace {

constexpr int kLookMilliseconds = 100;

/// A number that processes count together.
class SharedCount {
 public:
  SharedCount() {
    void* memory = mmap(nullptr, sizeof *count_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    count_ = new (memory) std::atomic<std::uint64_t>(0);
  }
  ~SharedCount() { munmap(count_, sizeof *count_); }
  SharedCount(const SharedCount&) = delete;

  void add(std::uint64_t more) { count_->fetch_add(more, std::memory_order_relaxed); }
  std::uint64_t value() const { return count_->load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t>* count_;
};

struct Worker {
  std::size_t piece;
  pid_t process;     // -1 once it was waited for
  int messages;      // from the process: the text of its error
  std::string said;  // what came so far
};

class Workers {
 public:
  Workers(const PieceWork& work, ReadingProgress& progress) : work_(work), progress_(progress) {}
  ~Workers() {
    for (const Worker& worker : workers_) stop(worker);
    for (Worker& worker : workers_) {
      if (worker.process > 0) end(worker);
    }
  }
  Workers(const Workers&) = delete;

  std::size_t count() const { return workers_.size(); }
  bool has_failed() const { return failure_.has_value(); }
  const std::string& failure() const { return failure_->text; }

  void start(std::size_t piece) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) throw RuntimeFault(std::string("no pipe: ") + std::strerror(errno) + ".");
    try {
      const pid_t process = start_copy("--processes: ", SIGKILL, ends[1], [&] { return run(piece, ends[1]); });
      workers_.push_back({piece, process, ends[0], {}});
    } catch (...) {
      close(ends[0]);
      close(ends[1]);
      throw;
    }
    close(ends[1]);
  }

  /// Waits until a worker tells something or ends, or for a moment.
  void wait() {
    std::vector<pollfd> all;
    for (const Worker& worker : workers_) all.push_back({worker.messages, POLLIN, 0});
    const int ready = poll(all.data(), all.size(), kLookMilliseconds);
    check_interrupts();
    const std::uint64_t read_now = read_.value();
    progress_.add(read_now - std::exchange(shown_, read_now));
    if (ready <= 0) return;
    std::vector<Worker> open;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].revents == 0 || hear(workers_[i])) {
        open.push_back(std::move(workers_[i]));
      } else {
        note_end(workers_[i], end(workers_[i]));
      }
    }
    workers_ = std::move(open);
  }

 private:
  struct Failure {
    std::size_t piece;
    std::string text;
  };

  /// In the process of a worker.
  int run(std::size_t piece, int messages) {
    // The process that started this one ends it.
    std::signal(SIGINT, SIG_IGN);
    std::signal(SIGTERM, SIG_DFL);
    std::string text;
    try {
      work_.run(piece, [this](std::uint64_t bytes) { read_.add(bytes); });
      return 0;
    } catch (const std::bad_alloc&) {
      text = work_.name(piece) + ": there is not enough memory. Give fewer --processes.";
    } catch (const std::exception& error) {
      text = error.what();
    } catch (...) {
      text = work_.name(piece) + ": an error without a text.";
    }
    (void)!::write(messages, text.data(), text.size());
    return 1;
  }

  /// Takes what a worker tells. Returns false once it tells no more.
  static bool hear(Worker& worker) {
    std::array<char, 4096> some{};
    const ssize_t count = read(worker.messages, some.data(), some.size());
    if (count < 0) return errno == EINTR || errno == EAGAIN;
    worker.said.append(some.data(), static_cast<std::size_t>(count));
    return count > 0;
  }

  static void stop(const Worker& worker) {
    if (worker.process > 0) kill(worker.process, SIGKILL);
  }

  /// Waits for the end of a worker, and returns its status.
  static int end(Worker& worker) {
    int status = 0;
    while (waitpid(worker.process, &status, 0) < 0 && errno == EINTR) {
    }
    worker.process = -1;
    close(worker.messages);
    return status;
  }

  void note_end(const Worker& worker, int status) {
    if (status == 0) return;
    std::string text = worker.said;
    if (text.empty()) {
      text = work_.name(worker.piece) + ": its process " + how_it_ended(status) + ".";
      if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
        text += " The system ends processes so where memory runs out: give fewer --processes.";
      }
    }
    if (failure_ && failure_->piece < worker.piece) return;
    failure_ = {worker.piece, std::move(text)};
    // An earlier piece may have an error of its own, which one process alone would have met first.
    for (const Worker& other : workers_) {
      if (other.piece > worker.piece) stop(other);
    }
  }

  const PieceWork& work_;
  ReadingProgress& progress_;
  SharedCount read_;
  std::uint64_t shown_ = 0;
  std::vector<Worker> workers_;
  std::optional<Failure> failure_;
};

}  // namespace

void run_pieces(const PieceWork& work, int processes, ReadingProgress& progress) {
  Workers workers(work, progress);
  std::size_t next = 0;
  for (;;) {
    for (; !workers.has_failed() && next < work.count && workers.count() < static_cast<std::size_t>(processes);
         ++next) {
      if (work.is_done(next)) {
        progress.skip(work.bytes(next));
      } else {
        workers.start(next);
      }
    }
    if (workers.count() == 0) break;
    workers.wait();
  }
  if (workers.has_failed()) throw RuntimeFault(workers.failure());
}

}  // namespace capstan::cli
