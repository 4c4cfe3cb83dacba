#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>

#include "sdk/conformance/offload_under_test.hpp"

/// What components of kind offload do when their storage fails, and with what cannot be done. Storage is made to fail
/// where it is files: by a limit of their size, by cutting them short, and by putting one in their place that fails.
namespace capstan::conformance {
namespace {

namespace fs = std::filesystem;

/// No file of this process may grow beyond so many bytes, nor be written there, for the life of this object.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit little{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &little);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
};

/// For the life of this object, each of these files answers EIO to reads and writes of its first 64 KiB: the memory of
/// this process, where it has none.
class FailingFiles {
 public:
  explicit FailingFiles(const std::vector<int>& files) {
    const int failing = ::open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    char byte = 0;
    if (failing < 0 || ::pread(failing, &byte, 1, 4096) >= 0) throw Skip("/proc/self/mem does not fail here.");
    for (const int file : files) {
      kept_.emplace_back(file, ::fcntl(file, F_DUPFD_CLOEXEC, 0));
      ::dup3(failing, file, O_CLOEXEC);
    }
    ::close(failing);
  }
  ~FailingFiles() {
    for (const auto& [file, kept] : kept_) {
      ::dup3(kept, file, O_CLOEXEC);
      ::close(kept);
    }
  }
  FailingFiles(const FailingFiles&) = delete;

 private:
  std::vector<std::pair<int, int>> kept_;
};

/// Halves or empties what the component keeps in files. False when there is none.
bool cut_files(const OffloadUnderTest& offload, std::uintmax_t parts) {
  bool some = false;
  for (const int file : offload.files()) {
    some |= ::ftruncate(file, parts == 0 ? 0 : ::lseek(file, 0, SEEK_END) / static_cast<off_t>(parts)) == 0;
  }
  for (const auto& entry : fs::recursive_directory_iterator(".")) {
    if (!entry.is_regular_file()) continue;
    fs::resize_file(entry.path(), parts == 0 ? 0 : entry.file_size() / parts);
    some = true;
  }
  return some;
}

void check_short_read(const Context& context, const ComponentManifest& component) {
  constexpr std::size_t kBytes = 1'000'003;
  OffloadUnderTest offload(context, component);
  auto random = context.random();
  const std::string data = random_bytes(random, kBytes);
  expect(offload.register_buffer(1, kBytes) && offload.move(write_of(1, 0, data.data(), kBytes)),
         "cannot write a buffer.");
  for (const std::uintmax_t parts : {2, 0}) {
    if (!cut_files(offload, parts)) throw Skip("keeps no file that could be cut short.");
    std::string back(kBytes, '\0');
    const bool read = offload.move(read_of(1, 0, back.data(), kBytes));
    expect(!read || back == data, "a read that comes short, at the end of its file, is not an error.");
  }
}

void check_full_disk(const Context& context, const ComponentManifest& component) {
  OffloadUnderTest offload(context, component);
  const FileSizeLimit limit(4096);
  const std::string data(1 << 20, 'x');
  std::string back(data.size(), '\0');
  if (!offload.register_buffer(1, data.size())) return;
  if (!offload.wait(offload.write(1, data.data(), data.size()))) return;
  expect(offload.wait(offload.read(1, back.data(), back.size())) && back == data,
         "a write to a full disk is not an error.");
}

void check_io_error(const Context& context, const ComponentManifest& component) {
  constexpr std::size_t kBytes = 60'000;
  OffloadUnderTest offload(context, component);
  const std::string old(kBytes, 'o'), next(kBytes, 'n');
  expect(offload.register_buffer(1, kBytes) && offload.move(write_of(1, 0, old.data(), kBytes)),
         "cannot write a buffer.");
  const std::vector<int> files = offload.files();
  if (files.empty()) throw Skip("holds no file open that could be made to fail.");
  std::string back(kBytes, '\0');
  bool wrote = false;
  {
    const FailingFiles failing(files);
    const bool read = offload.move(read_of(1, 0, back.data(), kBytes));
    expect(!read || back == old, "a read that fails with EIO is reported as done.");
    wrote = offload.move(write_of(1, 0, next.data(), kBytes));
  }
  expect(!wrote || (offload.move(read_of(1, 0, back.data(), kBytes)) && back == next),
         "a write that fails with EIO is reported as done.");
}

/// That what it says of a ticket that failed fits one of its ranges.
void check_fault(const capstan_offload_fault& fault, std::span<const capstan_range> ranges) {
  const auto same = [&](const capstan_range& range) {
    return range.write == fault.write && range.buffer_id == fault.buffer_id && range.offset == fault.offset &&
           range.bytes == fault.bytes;
  };
  expect(std::any_of(ranges.begin(), ranges.end(), same),
         "fault names a range that is none of the ticket's: buffer " + std::to_string(fault.buffer_id) + ", " +
             std::to_string(fault.bytes) + " bytes at " + std::to_string(fault.offset) + ".");
  expect(fault.done < fault.bytes, "fault says that " + std::to_string(fault.done) + " of " +
                                       std::to_string(fault.bytes) + " bytes were moved, which would be no failure.");
  expect(fault.error > 0, "fault has the errno " + std::to_string(fault.error) + " where a file's size is limited.");
}

void check_failed_ticket(const Context& context, const ComponentManifest& component) {
  constexpr std::size_t kBytes = 100'000;
  OffloadUnderTest offload(context, component);
  const std::string old(2 * kBytes, 'o'), next(2 * kBytes, 'n');
  std::string back(2 * kBytes, '\0');
  for (const std::uint64_t buffer : {1, 2}) {
    expect(offload.register_buffer(buffer, 2 * kBytes) && offload.move(write_of(buffer, 0, old.data(), old.size())),
           "cannot write a buffer.");
  }
  const capstan_range ranges[] = {write_of(1, 1, next.data(), kBytes), write_of(2, kBytes, next.data(), kBytes),
                                  read_of(1, kBytes + 1, back.data(), kBytes - 1)};
  {
    const FileSizeLimit limit(0);
    const auto ticket = offload.start(ranges);
    if (ticket && offload.wait(ticket)) throw Skip("writes to no file: nothing could be made to fail.");
    const auto fault = ticket ? offload.fault(*ticket) : std::nullopt;
    if (fault) check_fault(*fault, ranges);
  }
  for (const std::uint64_t buffer : {1, 2}) {
    offload.demand(offload.move(write_of(buffer, 0, next.data(), next.size())) &&
                       offload.move(read_of(buffer, 0, back.data(), back.size())) && back == next,
                   "when the cause of a failure has gone, transfers go on failing");
  }
}

void check_refused_start(const Context& context, const ComponentManifest& component) {
  constexpr std::size_t kBytes = 100'000;
  OffloadUnderTest offload(context, component);
  const std::string old(kBytes, 'o'), next(kBytes, 'n');
  std::string back(kBytes, '\0');
  for (const std::uint64_t buffer : {1, 2}) {
    expect(offload.register_buffer(buffer, kBytes) && offload.move(write_of(buffer, 0, old.data(), kBytes)),
           "cannot write a buffer.");
  }
  constexpr std::uint64_t kFar = UINT64_MAX - 10;
  const std::pair<const char*, capstan_range> impossible[] = {
      {"of a buffer that was not registered", write_of(7, 0, next.data(), kBytes)},
      {"that begins in its buffer and ends behind it", write_of(2, 1, next.data(), kBytes)},
      {"that begins behind its buffer", write_of(2, kFar, next.data(), 100)},
      {"that is read from behind its buffer", read_of(2, kBytes, back.data(), 1)}};
  for (const auto& [what, range] : impossible) {
    const capstan_range both[] = {write_of(1, 0, next.data(), kBytes), range};
    const auto ticket = offload.start(both);
    expect(!offload.wait(ticket), std::string("moves a range ") + what + ".");
    expect(ticket || (offload.move(read_of(1, 0, back.data(), kBytes)) && back == old),
           std::string("start refuses a range ") + what + ", and moves another one all the same.");
    expect(offload.move(write_of(1, 0, old.data(), kBytes)) && offload.move(read_of(2, 0, back.data(), kBytes)) &&
               back == old,
           std::string("after a range ") + what + " buffers are not what they were.");
  }
}

}  // namespace

Cases offload_failure_cases(const ComponentManifest& component) {
  const std::string prefix = "offload/" + component.type + "/";
  const auto bound = [component](auto check) {
    return [component, check](const Context& context) { check(context, component); };
  };
  return {
      {prefix + "short_read", "A read that comes short is an error with a text.", bound(check_short_read)},
      {prefix + "full_disk", "A full disk is an error with a text.", bound(check_full_disk)},
      {prefix + "io_error", "An I/O error is never reported as success.", bound(check_io_error)},
      {prefix + "failed_ticket", "A ticket that failed says which range and why, and harms no other.",
       bound(check_failed_ticket)},
      {prefix + "refused_start", "What cannot be done is an error, and a start that fails has begun nothing.",
       bound(check_refused_start)},
  };
}

}  // namespace capstan::conformance
