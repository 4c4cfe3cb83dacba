#include "swap_file.hpp"

#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "file_limit.hpp"

namespace capstan::offload {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint32_t kSector = 512;
constexpr unsigned long kCifs = 0xFF534D42, kSmb2 = 0xFE534D42;

/// The result of a system call, begun again when a signal came between.
template <class Call>
auto uninterrupted(Call call) {
  const NoFileSizeSignal guard;
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::uint64_t kMegabyte = 1'000'000;
  return bytes < kMegabyte ? std::to_string(bytes) + " bytes" : std::to_string(bytes / kMegabyte) + " MB";
}

SwapFile::SwapFile(const std::filesystem::path& folder, const sdk::Host& host) : folder_(folder) {
  open_unnamed();
  find_alignment();
  say_what_it_is(host);
}

SwapFile::~SwapFile() { close(file_); }

void SwapFile::open_unnamed() {
  for (const bool direct : {true, false}) {
    for (const bool named : {false, true}) {
      if (open_as(direct, named)) return;
      // Older kernels and some file systems know neither flag, and say so in different ways.
      if (errno == EINVAL || errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT) continue;
      throw sdk::Error("nvme_path '" + this->folder().string() + "': a file cannot be made there: " +
                       std::strerror(errno) + ". Name a folder that this user may write to.");
    }
  }
  throw sdk::Error("nvme_path '" + folder().string() + "': a file cannot be made there: " + std::strerror(errno) +
                   ". Name a folder on a disk.");
}

bool SwapFile::open_as(bool direct, bool named) {
  direct_ = direct;
  const int flags = O_CLOEXEC | (direct ? O_DIRECT : 0);
  if (!named) {
    file_ = open(folder().c_str(), flags | O_TMPFILE | O_RDWR | O_EXCL, 0600);
    return file_ >= 0;
  }
  std::string name = (folder() / "capstan-XXXXXX").string();
  file_ = mkostemp(name.data(), flags);
  const int error = errno;
  // Without a name at once: nothing is left behind however the process ends.
  if (file_ >= 0 || error == EINVAL) unlink(name.c_str());
  errno = error;
  return file_ >= 0;
}

void SwapFile::find_alignment() {
  struct statx facts {};
  std::uint32_t memory = kSector;
  bool told = false;
#ifdef STATX_DIOALIGN
  told = statx(file_, "", AT_EMPTY_PATH, STATX_DIOALIGN, &facts) == 0 && (facts.stx_mask & STATX_DIOALIGN) != 0;
  if (told && facts.stx_dio_offset_align != 0) {
    unit_ = facts.stx_dio_offset_align;
    memory = facts.stx_dio_mem_align;
  }
  if (told && facts.stx_dio_offset_align == 0) direct_ = false;
#endif
  alignment_ = std::max(unit_, memory);
  if (direct_ && !told) direct_ = takes_direct();
  if (direct_) return;
  alignment_ = 1;
  fcntl(file_, F_SETFL, fcntl(file_, F_GETFL) & ~O_DIRECT);
}

/// Some file systems accept O_DIRECT and refuse the first write. Other errors are for reserve() to tell.
bool SwapFile::takes_direct() const {
  const std::unique_ptr<void, decltype(&std::free)> page(std::aligned_alloc(kPage, kPage), &std::free);
  std::memset(page.get(), 0, kPage);
  const bool refused = uninterrupted([&] { return pwrite(file_, page.get(), kPage, 0); }) < 0 && errno == EINVAL;
  if (!refused && ftruncate(file_, 0) != 0) return false;
  return !refused;
}

void SwapFile::say_what_it_is(const sdk::Host& host) const {
  const std::string where = "nvme_path '" + folder().string() + "': ";
  if (!direct_) {
    host.warning(where +
                 "the file system does not take direct I/O (O_DIRECT): transfers go through the page cache, at "
                 "several times the CPU time.");
  }
  struct statfs facts {};
  if (fstatfs(file_, &facts) != 0) return;
  const auto type = static_cast<unsigned long>(facts.f_type) & 0xFFFFFFFF;
  if (type == TMPFS_MAGIC || type == RAMFS_MAGIC) {
    host.warning(where +
                 "is in memory (tmpfs): what is offloaded there takes memory all the same. Name a folder on a disk.");
  }
  if (type == NFS_SUPER_MAGIC || type == SMB_SUPER_MAGIC || type == kCifs || type == kSmb2) {
    host.warning(where + "is a network file system: every step waits for the network. Name a folder on a local disk.");
  }
}

std::uint64_t SwapFile::free_bytes() const {
  struct statvfs facts {};
  if (fstatvfs(file_, &facts) != 0) return UINT64_MAX;
  return static_cast<std::uint64_t>(facts.f_bavail) * facts.f_frsize;
}

std::uint64_t SwapFile::rounded(std::uint64_t bytes) const {
  const std::uint64_t unit = std::max<std::uint64_t>(kPage, unit_);
  return (bytes + unit - 1) / unit * unit;
}

std::uint64_t SwapFile::reserve(const std::string& what, std::uint64_t bytes) {
  if (bytes > INT64_MAX / 2) fail_to_reserve(what, bytes, EFBIG);
  const std::uint64_t size = rounded(bytes);
  const std::uint64_t at = place(size);
  allocate(what, at, size);
  if (at == end_) {
    end_ += size;
  } else {
    const auto gap = gaps_.extract(at);
    if (gap.mapped() > size) gaps_.emplace(at + size, gap.mapped() - size);
  }
  reserved_ += size;
  return at;
}

/// The first gap that is large enough, or the end.
std::uint64_t SwapFile::place(std::uint64_t bytes) {
  const auto gap = std::find_if(gaps_.begin(), gaps_.end(), [&](const auto& each) { return each.second >= bytes; });
  return gap == gaps_.end() ? end_ : gap->first;
}

void SwapFile::allocate(const std::string& what, std::uint64_t at, std::uint64_t bytes) {
  if (bytes == 0) return;
  const auto from = static_cast<off_t>(at), count = static_cast<off_t>(bytes);
  if (uninterrupted([&] { return fallocate(file_, 0, from, count); }) == 0) return;
  int error = errno;
  if (error == EOPNOTSUPP || error == ENOSYS) {
    const bool grows = at == end_;
    error = free_bytes() < bytes ? ENOSPC : 0;
    if (error == 0 && grows && uninterrupted([&] { return ftruncate(file_, from + count); }) != 0) error = errno;
    if (error == 0) return;
  }
  // What the file system has taken already of what it cannot take as a whole.
  const auto end = static_cast<off_t>(end_);
  if (at == end_ && ftruncate(file_, end) != 0) error = errno;
  fail_to_reserve(what, bytes, error);
}

void SwapFile::fail_to_reserve(const std::string& what, std::uint64_t bytes, int error) const {
  std::string text = "nvme_path '" + folder().string() + "': no room for " + what + ": it needs " + bytes_text(bytes);
  if (reserved_ > 0) text += " beside the " + bytes_text(reserved_) + " that are reserved";
  rlimit limit{RLIM_INFINITY, RLIM_INFINITY};
  getrlimit(RLIMIT_FSIZE, &limit);
  if (error == EFBIG && limit.rlim_cur != RLIM_INFINITY) {
    text += ", the limit of a file's size is " + bytes_text(limit.rlim_cur) + ". Raise it: ulimit -f unlimited.";
  } else if (error == ENOSPC) {
    text += ", the file system has " + bytes_text(free_bytes()) + ". Free some, or name a folder on a larger disk.";
  } else {
    text += ": " + std::string(std::strerror(error)) + ". Name a folder on another disk.";
  }
  throw sdk::Error(text);
}

void SwapFile::release(std::uint64_t at, std::uint64_t bytes) {
  std::uint64_t size = rounded(bytes);
  if (size == 0) return;
  // Where holes cannot be made the room is kept for the next buffer.
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at), static_cast<off_t>(size));
  reserved_ -= size;
  auto next = gaps_.lower_bound(at);
  if (next != gaps_.end() && next->first == at + size) {
    size += next->second;
    next = gaps_.erase(next);
  }
  if (next != gaps_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == at) {
      before->second += size;
      return;
    }
  }
  gaps_.emplace(at, size);
}

void SwapFile::leave_cache(std::uint64_t at, std::uint64_t bytes) const {
  if (!direct_) posix_fadvise(file_, static_cast<off_t>(at), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
}

}  // namespace capstan::offload
