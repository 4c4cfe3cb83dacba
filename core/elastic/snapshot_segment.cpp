#include "core/elastic/snapshot_segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/elastic/own_folder.hpp"
#include "core/errors.hpp"
#include "core/registry/file_trust.hpp"
#include "core/xxh3.hpp"

namespace capstan {
namespace {

constexpr std::uint64_t kPage = kSnapshotHead, kAlignment = 64;
constexpr char kMagic[8] = {'c', 'a', 'p', 's', 'n', 'a', 'p', '1'};

/// The first page of a segment.
struct Header {
  char magic[8];
  std::uint64_t seal;  // written last; 0: not sealed
  SnapshotFacts facts;
  SnapshotSizes sizes;
  std::uint64_t index_xxh3, digests_xxh3, state_xxh3;
};
static_assert(sizeof(Header) == 2 * 8 + sizeof(SnapshotFacts) + sizeof(SnapshotSizes) + 3 * 8, "no padding is hashed");
static_assert(sizeof(Header) <= kPage);

/// Never 0.
std::uint64_t seal_of(Header header) {
  header.seal = 0;
  return xxh3(&header, sizeof header) | 1;
}

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// Begins of the regions behind the header's page, in the order in which they stand.
struct Places {
  std::uint64_t index, digests, data, state, end;
  explicit Places(const SnapshotSizes& sizes)
      : index(kPage),
        digests(aligned(index + sizes.index)),
        data(aligned(digests + sizes.digests)),
        state(aligned(data + sizes.data)),
        end(state + sizes.state) {}
};

bool is_plausible(const SnapshotSizes& sizes) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 50;
  return sizes.index < kMost && sizes.digests < kMost && sizes.digests % sizeof(std::uint64_t) == 0 &&
         sizes.data < kMost && sizes.state < kMost;
}

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what, int reason) {
  throw RuntimeFault("snapshot '" + path.string() + "': " + what + ": " + std::generic_category().message(reason) +
                     ".");
}

}  // namespace

std::uint64_t SnapshotSizes::file() const { return Places(*this).end; }

SnapshotSegment::SnapshotSegment(std::filesystem::path path) : path_(std::move(path)) {}

SnapshotSegment::~SnapshotSegment() {
  if (memory_) munmap(memory_, capacity_);
  if (descriptor_ >= 0) close(descriptor_);
}

std::uint64_t SnapshotSegment::allocated() const {
  struct stat facts {};
  return lstat(path_.c_str(), &facts) == 0 ? static_cast<std::uint64_t>(facts.st_blocks) * 512 : 0;
}

void SnapshotSegment::reserve(std::uint64_t least, std::uint64_t wanted) {
  if (least <= capacity_) return;
  const std::uint64_t bytes = (wanted + kPage - 1) / kPage * kPage;
  if (descriptor_ < 0) {
    OpenFile file(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
    if (!file) fail(path_, "cannot be created", errno);
    check_own_file(file.descriptor(), path_);
    descriptor_ = file.release();
  }
  // A page of a sparse file that the memory has no room for would end the process by SIGBUS when it is written.
  if (const int reason = posix_fallocate(descriptor_, 0, static_cast<off_t>(bytes)); reason != 0) {
    if (capacity_ == 0) {
      unlink(path_.c_str());
      // What is written to a file without a name nobody finds.
      close(std::exchange(descriptor_, -1));
    }
    fail(path_, "no room for its " + std::to_string(bytes) + " bytes", reason);
  }
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor_, 0);
  if (mapped == MAP_FAILED) fail(path_, "cannot be mapped", errno);
  if (memory_) munmap(memory_, capacity_);
  memory_ = static_cast<std::byte*>(mapped);
  capacity_ = bytes;
}

void SnapshotSegment::open(const SnapshotSizes& sizes) {
  auto* header = reinterpret_cast<Header*>(memory_);
  std::atomic_ref(header->seal).store(0);
  std::memcpy(header->magic, kMagic, sizeof kMagic);
  sizes_ = sizes;
}

std::span<std::byte> SnapshotSegment::index() { return {memory_ + Places(sizes_).index, sizes_.index}; }
std::span<std::byte> SnapshotSegment::digests() { return {memory_ + Places(sizes_).digests, sizes_.digests}; }
std::span<std::byte> SnapshotSegment::data() { return {memory_ + Places(sizes_).data, sizes_.data}; }
std::span<std::byte> SnapshotSegment::state() { return {memory_ + Places(sizes_).state, sizes_.state}; }

void SnapshotSegment::seal(const SnapshotFacts& facts) {
  auto* header = reinterpret_cast<Header*>(memory_);
  header->facts = facts;
  header->sizes = sizes_;
  header->index_xxh3 = xxh3(index().data(), index().size());
  header->digests_xxh3 = xxh3(digests().data(), digests().size());
  header->state_xxh3 = xxh3(state().data(), state().size());
  std::atomic_ref(header->seal).store(seal_of(*header), std::memory_order_release);
}

std::span<std::byte> SnapshotSegment::open_copy(std::uint64_t body_bytes) {
  open({});
  return {memory_ + kPage, body_bytes};
}

void SnapshotSegment::seal_copy(std::span<const std::byte> head) {
  auto* own = reinterpret_cast<Header*>(memory_);
  Header header;
  std::memcpy(&header, head.data(), sizeof header);
  const std::uint64_t seal = std::exchange(header.seal, 0);
  std::memcpy(own, &header, sizeof header);
  std::atomic_ref(own->seal).store(seal, std::memory_order_release);
}

std::optional<SealedSegment> SealedSegment::read(const std::filesystem::path& file) {
  const std::string where = "snapshot '" + file.string() + "': ";
  const OpenFile opened(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!opened) {
    if (errno == ENOENT) return std::nullopt;
    fail(file, "cannot be opened", errno);
  }
  struct stat facts {};
  const bool regular = fstat(opened.descriptor(), &facts) == 0 && S_ISREG(facts.st_mode);
  if (regular && facts.st_uid != geteuid()) {
    throw RuntimeFault(where + "it belongs to " + user_name(facts.st_uid) + ", not to you (" + user_name(geteuid()) +
                       "), and is not read.");
  }
  const auto bytes = static_cast<std::uint64_t>(facts.st_size);
  if (!regular || (bytes > 0 && bytes < kPage)) throw RuntimeFault(where + "it is not a snapshot of this program.");
  if (bytes == 0) return std::nullopt;  // its process was killed before there was anything in it
  void* mapped = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, opened.descriptor(), 0);
  if (mapped == MAP_FAILED) fail(file, "cannot be mapped", errno);

  SealedSegment segment;
  segment.path_ = file;
  segment.memory_ = {static_cast<const std::byte*>(mapped),
                     [bytes](const std::byte* memory) { munmap(const_cast<std::byte*>(memory), bytes); }};
  Header header;
  // Who writes it may be at it: the seal is read first, and what it covers after it.
  auto* shared = reinterpret_cast<Header*>(mapped);
  const std::uint64_t seal = __atomic_load_n(&shared->seal, __ATOMIC_ACQUIRE);
  std::memcpy(&header, mapped, sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) {
    constexpr char kNothing[sizeof kMagic] = {};
    if (seal == 0 && std::memcmp(header.magic, kNothing, sizeof kMagic) == 0) return std::nullopt;
    throw RuntimeFault(where + "it is not a snapshot of this program.");
  }
  if (seal == 0) return std::nullopt;
  if (seal != seal_of(header)) throw RuntimeFault(where + "its header is damaged: it does not match its checksum.");
  const Places places(header.sizes);
  if (!is_plausible(header.sizes) || places.end > bytes) {
    throw RuntimeFault(where + "it was cut off: it has " + std::to_string(bytes) + " bytes, " +
                       std::to_string(places.end) + " were written.");
  }
  segment.facts_ = header.facts;
  segment.sizes_ = header.sizes;
  const auto check = [&](const char* what, std::uint64_t begin, std::uint64_t count, std::uint64_t expected) {
    if (xxh3(segment.memory_.get() + begin, count) == expected) return;
    throw RuntimeFault(where + "its " + what + " is damaged: it does not match its checksum.");
  };
  check("index", places.index, header.sizes.index, header.index_xxh3);
  check("list of checksums", places.digests, header.sizes.digests, header.digests_xxh3);
  check("state", places.state, header.sizes.state, header.state_xxh3);
  return segment;
}

std::string_view SealedSegment::index() const {
  return {reinterpret_cast<const char*>(memory_.get()) + Places(sizes_).index, sizes_.index};
}

std::uint64_t SealedSegment::digest(std::uint64_t tensor) const {
  std::uint64_t value = 0;
  std::memcpy(&value, memory_.get() + Places(sizes_).digests + tensor * sizeof value, sizeof value);
  return value;
}

std::string_view SealedSegment::state() const {
  return {reinterpret_cast<const char*>(memory_.get()) + Places(sizes_).state, sizes_.state};
}

std::span<const std::byte> SealedSegment::data() const { return {memory_.get() + Places(sizes_).data, sizes_.data}; }

std::span<const std::byte> SealedSegment::bytes() const { return {memory_.get(), Places(sizes_).end}; }
std::span<const std::byte> SealedSegment::head() const { return bytes().first(kPage); }
std::span<const std::byte> SealedSegment::body() const { return bytes().subspan(kPage); }

}  // namespace capstan
