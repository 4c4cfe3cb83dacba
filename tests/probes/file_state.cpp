#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <future>
#include <map>
#include <string>

#include "capstan/sdk/offload.hpp"

namespace capstan::probes {

/// One file a buffer, written and read by a thread a transfer.
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

  std::uint64_t write_async(std::uint64_t buffer, const void* from, std::uint64_t bytes) {
    return start([path = path(buffer), from, bytes] {
      const int file = opened(path, O_CREAT | O_TRUNC | O_WRONLY);
      const auto* at = static_cast<const char*>(from);
      transfer(file, path, bytes, [&](std::uint64_t done, std::uint64_t rest) { return write(file, at + done, rest); });
    });
  }

  std::uint64_t read_async(std::uint64_t buffer, void* to, std::uint64_t bytes) {
    return start([path = path(buffer), to, bytes] {
      const int file = opened(path, O_RDONLY);
      auto* at = static_cast<char*>(to);
      transfer(file, path, bytes, [&](std::uint64_t done, std::uint64_t rest) { return read(file, at + done, rest); });
    });
  }

  void wait(std::uint64_t ticket) { transfers_.extract(ticket).mapped().get(); }

 private:
  std::string path(std::uint64_t buffer) const { return folder_ + "/" + std::to_string(buffer) + ".state"; }

  template <class Transfer>
  std::uint64_t start(Transfer transfer) {
    transfers_.emplace(++tickets_, std::async(std::launch::async, transfer));
    return tickets_;
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
  std::map<std::uint64_t, std::future<void>> transfers_;
};

}  // namespace capstan::probes

CAPSTAN_PLUGIN(&capstan::sdk::offload<capstan::probes::FileState, "file_state">)
