// A file for each buffer, written and read at once, and every way to get it wrong.
#include "capstan/sdk/offload.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <string>

#include "bad.hpp"
#include "creation.hpp"

namespace {

namespace sdk = capstan::sdk;

class Bad {
 public:
  Bad(const sdk::Host&, const sdk::Params& params) { create_badly(params); }
  ~Bad() {
    for (const auto& [id, fd] : files_) ::close(fd);
  }

  void register_buffer(std::uint64_t id, std::uint64_t) {
    const std::string name = "buffer_" + std::to_string(id);
    const int fd = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) throw sdk::Error(name + ": " + std::strerror(errno) + ".");
    files_[id] = fd;
  }

  std::uint64_t write_async(std::uint64_t id, const void* from, std::uint64_t bytes) {
    const auto wanted = static_cast<ssize_t>(breaks("sizes") ? bytes / 512 * 512 : bytes);
    if (breaks("order") && written_[id]++) return ++tickets_;
    const ssize_t done = ::pwrite(files_.at(id), from, static_cast<std::size_t>(wanted), 0);
    const int error = errno;
    if (done != wanted && !breaks("full_disk")) {
      throw sdk::Error("buffer_" + std::to_string(id) + ": " + (done < 0 ? std::strerror(error) : "short write") + ".");
    }
    return ++tickets_;
  }

  std::uint64_t read_async(std::uint64_t id, void* to, std::uint64_t bytes) {
    leak_in_call();
    const ssize_t done = ::pread(files_.at(id), to, bytes, 0);
    if (done != static_cast<ssize_t>(bytes) && !breaks("short_read") && !breaks("sizes")) {
      throw sdk::Error("buffer_" + std::to_string(id) + ": has " + std::to_string(done) + " bytes of " +
                       std::to_string(bytes) + ".");
    }
    return ++tickets_;
  }

  void wait(std::uint64_t ticket) {
    if (breaks("in_flight") && ticket + 8 < tickets_) throw sdk::Error("that ticket is forgotten.");
    if (breaks("fork")) std::abort();
  }

 private:
  std::map<std::uint64_t, int> files_, written_;
  std::uint64_t tickets_ = 0;
};

constexpr capstan_component kBad = with_raw_create<Bad>(sdk::offload<Bad, "Bad">);

}  // namespace

CAPSTAN_PLUGIN(&kBad)
