#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "capstan/sdk/offload.hpp"

namespace capstan::probes {

/// One file a buffer, written and read by a thread a transfer, which waits for the transfer before: ranges of a buffer
/// keep the order of their calls.
class FileState {
 public:
  FileState(sdk::Host, const sdk::Params& params)
      : folder_(params.text("folder")), limit_(static_cast<std::uint64_t>(params.integer("memory"))) {}

  void register_buffer(std::uint64_t buffer, std::uint64_t bytes) {
    if (bytes > limit_) {
      throw sdk::Error("buffer " + std::to_string(buffer) + " needs " + std::to_string(bytes) + " bytes of memory, " +
                       std::to_string(limit_) + " are allowed. Lower zero_optimization.sub_group_size.");
    }
  }

  std::uint64_t start(std::span<const sdk::Range> ranges) {
    newest_ =
        std::async(std::launch::async, [this, before = newest_, moved = std::vector(ranges.begin(), ranges.end())] {
          if (before.valid()) before.wait();
          for (const sdk::Range& range : moved) move(range);
        }).share();
    transfers_.emplace(++tickets_, newest_);
    return tickets_;
  }

  bool poll(std::uint64_t ticket) {
    if (transfers_.at(ticket).wait_for(std::chrono::seconds(0)) != std::future_status::ready) return false;
    transfers_.extract(ticket).mapped().get();
    return true;
  }

 private:
  std::string path(std::uint64_t buffer) const { return folder_ + "/" + std::to_string(buffer) + ".state"; }

  void move(const sdk::Range& range) const {
    const std::string path = this->path(range.buffer_id);
    const int file = opened(path, range.write != 0 ? O_CREAT | O_WRONLY : O_RDONLY);
    auto* at = static_cast<char*>(range.memory);
    transfer(file, path, range.bytes, [&](std::uint64_t done, std::uint64_t rest) {
      const auto offset = static_cast<off_t>(range.offset + done);
      return range.write != 0 ? pwrite(file, at + done, rest, offset) : pread(file, at + done, rest, offset);
    });
  }

  static int opened(const std::string& path, int flags) {
    const int file = open(path.c_str(), flags | O_CLOEXEC, 0644);
    if (file < 0) throw sdk::Error(path + ": cannot be opened: " + std::strerror(errno) + ".");
    return file;
  }

  template <class Part>
  static void transfer(int file, const std::string& path, std::uint64_t bytes, Part part) {
    std::uint64_t done = 0;
    ssize_t moved = 1;
    while (done < bytes && (moved = part(done, bytes - done)) > 0) done += static_cast<std::uint64_t>(moved);
    const std::string why = moved < 0 ? std::strerror(errno) : "the file is too short";
    close(file);
    if (done < bytes) throw sdk::Error(path + ": " + why + ".");
  }

  std::string folder_;
  std::uint64_t limit_;
  std::uint64_t tickets_ = 0;
  std::map<std::uint64_t, std::shared_future<void>> transfers_;
  std::shared_future<void> newest_;
};

}  // namespace capstan::probes

CAPSTAN_PLUGIN(&capstan::sdk::offload<capstan::probes::FileState, "file_state">)
