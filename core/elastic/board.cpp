#include "core/elastic/board.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <climits>
#include <cmath>
#include <ctime>
#include <system_error>
#include <thread>

#include "core/errors.hpp"

namespace capstan {
namespace {

constexpr std::size_t kBytes = 4096;
/// A reader may meet a writer in the middle of a record, and reads again.
constexpr int kReads = 1000;
constexpr std::chrono::milliseconds kBetweenReads{1};

struct RevisionRecord {
  static constexpr off_t kAt = 0;
  std::uint32_t value;
  bool is_whole() const { return true; }
};

constexpr std::uint64_t mixed(std::uint64_t sum, std::int64_t value) {
  return std::rotl((sum ^ static_cast<std::uint64_t>(value)) * 0x9e3779b97f4a7c15u, 29);
}

/// The checksum of a record of zeros is 0: a new board is whole.
struct StepRecord {
  static constexpr off_t kAt = 64;
  std::int64_t generation, step, at_us, kept;
  std::uint64_t sum;
  std::uint64_t expected() const { return mixed(mixed(mixed(mixed(0, generation), step), at_us), kept); }
  bool is_whole() const { return sum == expected(); }
};

struct ClockRecord {
  static constexpr off_t kAt = 128;
  std::int64_t ahead_us;
  std::uint64_t sum;
  std::uint64_t expected() const { return mixed(0, ahead_us); }
  bool is_whole() const { return sum == expected(); }
};

std::int64_t microseconds(double seconds) { return static_cast<std::int64_t>(seconds * 1e6); }

}  // namespace

void Board::create(const OwnFolder& folder) {
  const OpenFile file = folder.open(kBoardFile, O_RDWR | O_CREAT);
  const int failure = posix_fallocate(file.descriptor(), 0, kBytes);
  if (failure == 0) return;
  throw RuntimeFault("'" + (folder.path() / kBoardFile).string() +
                     "': cannot be written: " + std::generic_category().message(failure) + ".");
}

Board::Board(const OwnFolder& folder) : path_(folder.path() / kBoardFile), file_(folder.open(kBoardFile, O_RDWR)) {
  if (!file_) fail("is missing");
  struct stat facts {};
  if (fstat(file_.descriptor(), &facts) != 0 || facts.st_size < static_cast<off_t>(kBytes)) fail("was cut short");
  void* page = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.descriptor(), 0);
  if (page == MAP_FAILED) {
    throw RuntimeFault("'" + path_.string() + "': cannot be shared: " + std::generic_category().message(errno) + ".");
  }
  page_ = std::shared_ptr<void>(page, [](void* memory) { munmap(memory, kBytes); });
}

void Board::fail(const char* problem) const {
  throw RuntimeFault("'" + path_.string() + "': " + problem +
                     ". A launcher makes it, and nobody else may change it: launch anew.");
}

template <typename Record>
Record Board::load() const {
  for (int reads = 0; reads < kReads; ++reads) {
    if (reads > 0) std::this_thread::sleep_for(kBetweenReads);
    Record record;
    const ssize_t count = pread(file_.descriptor(), &record, sizeof record, Record::kAt);
    if (count != static_cast<ssize_t>(sizeof record)) fail("was cut short");
    if (record.is_whole()) return record;
  }
  fail("is damaged");
}

template <typename Record>
void Board::store(const Record& record) const {
  struct stat facts {};
  if (fstat(file_.descriptor(), &facts) != 0 || facts.st_size < static_cast<off_t>(kBytes)) fail("was cut short");
  const ssize_t count = pwrite(file_.descriptor(), &record, sizeof record, Record::kAt);
  if (count != static_cast<ssize_t>(sizeof record)) fail("cannot be written");
}

std::uint32_t Board::revision() const { return load<RevisionRecord>().value; }

void Board::count_revision() const {
  store(RevisionRecord{revision() + 1});
  syscall(SYS_futex, page_.get(), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Board::await_other_than(std::uint32_t revision, std::chrono::milliseconds patience) const {
  const timespec time{patience.count() / 1000, patience.count() % 1000 * 1'000'000};
  const long result = syscall(SYS_futex, page_.get(), FUTEX_WAIT, revision, &time, nullptr, 0);
  if (result != 0 && errno == EFAULT) fail("was cut short");
}

WorldStep Board::step() const {
  const auto record = load<StepRecord>();
  return {record.generation, record.step, static_cast<double>(record.at_us) * 1e-6, record.kept};
}

void Board::set_step(const WorldStep& step) const {
  StepRecord record{step.generation, step.step, microseconds(step.at), step.kept, 0};
  record.sum = record.expected();
  store(record);
}

double Board::ahead() const { return static_cast<double>(load<ClockRecord>().ahead_us) * 1e-6; }

void Board::set_ahead(double seconds) const {
  ClockRecord record{microseconds(seconds), 0};
  record.sum = record.expected();
  store(record);
}

}  // namespace capstan
