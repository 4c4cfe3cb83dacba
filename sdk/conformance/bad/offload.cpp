// A file for each buffer, written and read at once, and every way to get it wrong.
#include "capstan/sdk/offload.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <span>
#include <string>

#include "bad.hpp"
#include "creation.hpp"

namespace {

namespace sdk = capstan::sdk;

class Bad {
 public:
  Bad(const sdk::Host&, const sdk::Params& params) { create_badly(params); }
  ~Bad() {
    for (const auto& [id, fd] : files_) {
      ::close(fd);
      ::unlink(name_of(id).c_str());
    }
  }

  void register_buffer(std::uint64_t id, std::uint64_t bytes) {
    const std::string name = name_of(id);
    const int fd = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) throw sdk::Error(name + ": " + std::strerror(errno) + ".");
    files_[id] = fd;
    sizes_[id] = bytes;
  }

  std::uint64_t start(std::span<const sdk::Range> ranges) {
    for (const sdk::Range& range : ranges) {
      const std::uint64_t size = sizes_.contains(range.buffer_id) ? sizes_[range.buffer_id] : 0;
      if (range.bytes > size || range.offset > size - range.bytes)
        throw sdk::Error("a range is outside of its buffer.");
    }
    for (const sdk::Range& range : ranges) range.write != 0 ? write(range) : read(range);
    return ++tickets_;
  }

  bool poll(std::uint64_t ticket) {
    if (breaks("in_flight") && ticket + 8 < tickets_) throw sdk::Error("that ticket is forgotten.");
    if (breaks("fork")) std::abort();
    return true;
  }

 private:
  static std::string name_of(std::uint64_t id) { return "buffer_" + std::to_string(id); }

  void write(const sdk::Range& range) {
    const auto wanted = static_cast<ssize_t>(breaks("sizes") ? range.bytes / 512 * 512 : range.bytes);
    if (breaks("order") && written_[range.buffer_id]++) return;
    const auto offset = static_cast<off_t>(range.offset);
    const ssize_t done = ::pwrite(files_.at(range.buffer_id), range.memory, static_cast<std::size_t>(wanted), offset);
    const int error = errno;
    if (done == wanted || breaks("full_disk")) return;
    throw sdk::Error(name_of(range.buffer_id) + ": " + (done < 0 ? std::strerror(error) : "short write") + ".");
  }

  void read(const sdk::Range& range) {
    leak_in_call();
    const ssize_t done =
        ::pread(files_.at(range.buffer_id), range.memory, range.bytes, static_cast<off_t>(range.offset));
    if (done == static_cast<ssize_t>(range.bytes) || breaks("short_read") || breaks("sizes")) return;
    throw sdk::Error(name_of(range.buffer_id) + ": has " + std::to_string(done) + " bytes of " +
                     std::to_string(range.bytes) + ".");
  }

  std::map<std::uint64_t, int> files_, written_;
  std::map<std::uint64_t, std::uint64_t> sizes_;
  std::uint64_t tickets_ = 0;
};

constexpr capstan_component kBad = with_raw_create<Bad>(sdk::offload<Bad, "Bad">);

}  // namespace

CAPSTAN_PLUGIN(&kBad)
