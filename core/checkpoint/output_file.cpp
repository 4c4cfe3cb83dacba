#include "core/checkpoint/output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>

#include "core/errors.hpp"
#include "core/output_path.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kGathered = 1 << 20;
constexpr std::size_t kLargestWrite = 64 << 20;  // below the 2 GiB that one write(2) takes

std::string reason_text(int reason) { return std::generic_category().message(reason); }

}  // namespace

OutputFile::OutputFile(const fs::path& path)
    : path_(path), descriptor_(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) {
    throw RuntimeFault("'" + path_.string() + "' cannot be created: " + reason_text(errno) + ".");
  }
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  struct stat facts {};
  const bool regular = fstat(descriptor_, &facts) == 0 && S_ISREG(facts.st_mode);  // a device is not ours to remove
  close(descriptor_);
  if (regular) unlink(path_.c_str());
}

void OutputFile::write(const void* bytes, std::size_t count) {
  const auto* from = static_cast<const std::byte*>(bytes);
  position_ += count;
  if (count >= kGathered) {
    flush();
    return write_through(from, count);
  }
  if (gathered_.size() + count > kGathered) flush();
  gathered_.insert(gathered_.end(), from, from + count);
}

void OutputFile::flush() {
  write_through(gathered_.data(), gathered_.size());
  gathered_.clear();
}

void OutputFile::write_through(const std::byte* bytes, std::size_t count) {
  while (count > 0) {
    const ssize_t done = ::write(descriptor_, bytes, std::min(count, kLargestWrite));
    if (done < 0) {
      if (errno == EINTR) continue;
      fail("writing failed", errno);
    }
    // A write that falls short is followed by one that tells why, when there is a why.
    bytes += done;
    count -= static_cast<std::size_t>(done);
    written_ += static_cast<std::uint64_t>(done);
  }
}

void OutputFile::finish() {
  flush();
  // A device or a pipe has nothing to sync, and says so.
  if (fsync(descriptor_) != 0 && errno != EINVAL && errno != ENOTSUP) fail("syncing failed", errno);
  const int closed = close(descriptor_);
  const int reason = errno;
  descriptor_ = -1;
  if (closed != 0) {
    unlink(path_.c_str());
    fail("closing failed", reason);
  }
}

void OutputFile::fail(const char* what, int reason) const {
  std::string text =
      "'" + path_.string() + "': " + what + " at byte " + std::to_string(written_) + ": " + reason_text(reason) + ".";
  if (reason == ENOSPC || reason == EDQUOT) {
    text += " Free space there or save elsewhere.";
  }
  throw RuntimeFault(text);
}

void write_file(const fs::path& path, std::string_view text) {
  OutputFile file(path);
  file.write(text);
  file.finish();
}

void sync_folder(const fs::path& folder) {
  const int descriptor = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int reason = descriptor < 0 ? errno : 0;
  if (descriptor >= 0) {
    if (fsync(descriptor) != 0) reason = errno;
    close(descriptor);
  }
  // Some network file systems have nothing to sync in a folder and say so.
  if (reason != 0 && reason != EINVAL && reason != ENOTSUP) {
    throw RuntimeFault("folder '" + folder.string() + "': syncing failed: " + reason_text(reason) + ".");
  }
}

void create_folders(const fs::path& folder) {
  std::error_code error;
  if (fs::is_directory(folder, error)) return;
  const auto above = fs::absolute(folder).parent_path();
  if (above != folder) create_folders(above);
  fs::create_directory(folder, error);
  if (error) {
    throw RuntimeFault("folder '" + folder.string() + "' cannot be created: " + error.message() + ".");
  }
  sync_folder(above);
}

void rename_synced(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) {
    throw RuntimeFault("'" + from.string() + "' cannot be renamed to '" + to.string() + "': " + error.message() + ".");
  }
  sync_folder(to.parent_path());
}

void write_aside(const fs::path& path, const std::function<void(const fs::path&)>& write) {
  const sdk::OutputPath to = output_path(path);
  if (to.is_stream) return write(to.path);
  fs::path aside = to.path;
  aside += ".partial-" + std::to_string(getpid());
  try {
    write(aside);
    rename_synced(aside, to.path);
  } catch (...) {
    std::error_code error;
    fs::remove(aside, error);
    throw;
  }
}

}  // namespace capstan
