// Ranges of buffers in one file without a name, moved by a thread in the order of their calls, and every way to get it
// wrong.
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "bad.hpp"
#include "capstan/sdk/offload.hpp"
#include "creation.hpp"

namespace {

namespace sdk = capstan::sdk;

struct Failure {
  std::string text;
  sdk::OffloadFault fault;
};

/// The file, and where in it each buffer lies.
class File {
 public:
  File() {
    file_ = ::open("swap", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file_ < 0) throw sdk::Error(std::string("swap: ") + std::strerror(errno) + ".");
    if (!breaks("leftovers")) ::unlink("swap");
  }
  ~File() { ::close(file_); }

  std::uint64_t free_bytes() const {
    struct statvfs facts {};
    ::fstatvfs(file_, &facts);
    return facts.f_bavail * facts.f_frsize;
  }

  void add(std::uint64_t id, std::uint64_t bytes) {
    if (bytes > free_bytes() && !breaks("facts_free")) {
      throw sdk::Error("buffer " + std::to_string(id) + " needs " + std::to_string(bytes) + " bytes, " +
                       std::to_string(free_bytes()) + " are free.");
    }
    for (auto place = released_.begin(); place != released_.end(); ++place) {
      if (place->bytes < bytes) continue;
      places_[id] = {place->at, bytes};
      released_.erase(place);
      return;
    }
    places_[id] = {end_, bytes};
    end_ += bytes;
  }

  void remove(std::uint64_t id) {
    const auto place = places_.find(id);
    released_.push_back(breaks("release") ? places_.begin()->second : place->second);
    places_.erase(place);
  }

  void check(const sdk::Range& range) const {
    const auto place = places_.find(range.buffer_id);
    if (place == places_.end() || range.offset > place->second.bytes ||
        range.bytes > place->second.bytes - range.offset) {
      throw sdk::Error("there are no " + std::to_string(range.bytes) + " bytes at " + std::to_string(range.offset) +
                       " of buffer " + std::to_string(range.buffer_id) + ".");
    }
    const bool sectors = (range.offset | range.bytes) % 512 == 0;
    if (breaks("facts") && sectors && (range.offset | range.bytes) % 4096 != 0) {
      throw sdk::Error(std::string("swap: ") + std::strerror(EINVAL) + ".");
    }
  }

  /// What went wrong, if anything.
  std::optional<Failure> move(const sdk::Range& range, char* memory) {
    if (breaks("lost_write") && range.write != 0 && ++writes_ % 7 == 0) return std::nullopt;
    const std::uint64_t at = places_.at(range.buffer_id).at + range.offset;
    const std::uint64_t bytes = breaks("ranges") && range.offset % 512 != 0 ? range.bytes - 1 : range.bytes;
    for (std::uint64_t done = 0; done < bytes;) {
      const auto place = static_cast<off_t>(at + done);
      const ssize_t moved = range.write != 0 ? ::pwrite(file_, memory + done, bytes - done, place)
                                             : ::pread(file_, memory + done, bytes - done, place);
      if (moved > 0) {
        done += static_cast<std::uint64_t>(moved);
        continue;
      }
      const int error = moved < 0 ? errno : ENODATA;
      if (overlooks(error)) break;
      sdk::OffloadFault fault{sizeof fault, error, range.write, range.buffer_id, range.offset, range.bytes, done};
      if (breaks("failed_ticket")) fault.offset = 0;
      return Failure{std::string("swap: ") + std::strerror(error) + ".", fault};
    }
    return std::nullopt;
  }

 private:
  struct Place {
    std::uint64_t at = 0, bytes = 0;
  };

  static bool overlooks(int error) {
    return (breaks("short_read") && error == ENODATA) || (breaks("io_error") && error == EIO) ||
           (breaks("full_disk") && error == EFBIG);
  }

  int file_ = -1;
  std::uint64_t end_ = 0, writes_ = 0;
  std::map<std::uint64_t, Place> places_;
  std::deque<Place> released_;
};

class Bad {
 public:
  Bad(const sdk::Host&, const sdk::Params& params) {
    create_badly(params);
    thread_ = std::thread([this] { work(); });
  }

  ~Bad() {
    std::unique_lock lock(mutex_);
    ends_ = true;
    const std::deque<Job> left = std::move(queue_);
    lock.unlock();
    changed_.notify_all();
    thread_.join();
    if (breaks("done")) {
      for (const auto& [memory, bytes] : was_read_) bytes.copy(memory, bytes.size());
    }
    if (breaks("destroy")) {
      std::thread([left] {
        ::usleep(1000);
        for (const Job& job : left) {
          for (const sdk::Range& range : job.ranges) std::memset(range.memory, 0, range.bytes);
        }
        ::pause();
      }).detach();
    }
  }

  sdk::OffloadFacts facts() const {
    return {sizeof(sdk::OffloadFacts), breaks("alignment") ? 513u : 512u, breaks("in_flight_bytes") ? 0u : 1u << 20,
            file_.free_bytes()};
  }

  void register_buffer(std::uint64_t id, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    file_.add(id, bytes);
  }
  void release_buffer(std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    file_.remove(id);
  }
  void lend(void* memory, std::uint64_t bytes) {
    if (lent_ == nullptr) lent_pages_.resize(bytes);
    if (lent_ == nullptr) lent_ = static_cast<char*>(memory);
  }
  void take_back(void* memory) noexcept { stale_ = breaks("stale_pages") && memory == lent_; }

  std::uint64_t start(std::span<const sdk::Range> ranges) {
    leak_in_call();
    if (breaks("late_write")) late();
    {
      const std::lock_guard lock(mutex_);
      for (const sdk::Range& range : ranges) {
        if (breaks("refused_start") && ranges.size() == 2 && &range != ranges.data()) {
          file_.move(ranges[0], static_cast<char*>(ranges[0].memory));
        }
        file_.check(range);
      }
      Job job{++tickets_, std::this_thread::get_id(), {ranges.begin(), ranges.end()}};
      if (breaks("many_ranges")) job.ranges.resize(std::min<std::size_t>(job.ranges.size(), 256));
      if (breaks("late_write") && ranges[0].write != 0) {
        late_.push_back(std::move(job));
        return tickets_;
      }
      began_by_[tickets_] = job.thread;
      queue_.push_back(std::move(job));
    }
    changed_.notify_all();
    return tickets_;
  }

  bool poll(std::uint64_t ticket) {
    std::unique_lock lock(mutex_);
    if (breaks("late_write") && !late_.empty() && late_.back().ticket == ticket) return true;
    if (breaks("threads") && began_by_[ticket] != std::this_thread::get_id()) {
      throw sdk::Error("this thread has no ticket " + std::to_string(ticket) + ".");
    }
    if (breaks("tickets")) {
      std::erase_if(queue_, [&](const Job& job) { return job.ticket == ticket; });
      return true;
    }
    polled_ = true;
    changed_.notify_all();
    if (breaks("poll")) changed_.wait(lock, [&] { return done_.contains(ticket); });
    return end(ticket);
  }

  sdk::OffloadFault fault(std::uint64_t) const { return failed_; }
  std::string stats() const { return breaks("stats") ? "{\"about\": 1}" : "{\"about\": \"a file\"}"; }

 private:
  struct Job {
    std::uint64_t ticket = 0;
    std::thread::id thread;
    std::vector<sdk::Range> ranges;
  };

  /// Whether it waits with its work until somebody polls: then what is wrong shows every time.
  static bool lazy() { return breaks("overlaps") || breaks("tickets") || breaks("poll") || breaks("destroy"); }

  /// Forgets a ticket that is done, and throws why it failed. False while it is under way.
  bool end(std::uint64_t ticket) {
    const auto done = done_.find(ticket);
    if (done == done_.end()) return false;
    const std::optional<Failure> failure = std::move(done->second);
    done_.erase(done);
    began_by_.erase(ticket);
    if (!failure) return true;
    failed_ = failure->fault;
    throw sdk::Error(failure->text);
  }

  void late() {
    for (const Job& job : late_) carry_out(job);
    late_.clear();
  }

  std::optional<Failure> carry_out(const Job& job) {
    for (const sdk::Range& range : job.ranges) {
      auto* memory = static_cast<char*>(range.memory);
      if (breaks("lend") && range.write == 0 && lent_ != nullptr) memory = lent_;
      if (stale_ && memory == lent_) memory = lent_pages_.data();
      if (auto failure = file_.move(range, memory)) return failure;
      if (breaks("done") && range.write == 0) was_read_.emplace_back(memory, std::string(memory, range.bytes));
    }
    return std::nullopt;
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ends_ || (!queue_.empty() && (polled_ || !lazy())); });
      if (ends_) return;
      const Job job = breaks("overlaps") ? queue_.back() : queue_.front();
      breaks("overlaps") ? queue_.pop_back() : queue_.pop_front();
      lock.unlock();
      auto failure = carry_out(job);
      lock.lock();
      done_[job.ticket] = std::move(failure);
      polled_ = polled_ && !queue_.empty();
      changed_.notify_all();
    }
  }

  File file_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> queue_, late_;
  std::map<std::uint64_t, std::optional<Failure>> done_;
  std::map<std::uint64_t, std::thread::id> began_by_;
  std::vector<std::pair<char*, std::string>> was_read_;
  sdk::OffloadFault failed_{};
  char* lent_ = nullptr;
  std::string lent_pages_;  // what its address meant when it was lent
  bool stale_ = false;
  std::uint64_t tickets_ = 0;
  bool polled_ = false;
  bool ends_ = false;
  std::thread thread_;
};

constexpr capstan_component kBad = with_raw_create<Bad>(sdk::offload<Bad, "Bad">);

}  // namespace

CAPSTAN_PLUGIN(&kBad)
