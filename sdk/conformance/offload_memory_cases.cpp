#include <sys/mman.h>

#include <cstring>
#include <filesystem>

#include "core/text/json.hpp"
#include "sdk/conformance/footprint.hpp"
#include "sdk/conformance/offload_under_test.hpp"

/// What components of kind offload do with the host's memory and with their own, and what they say of themselves.
namespace capstan::conformance {
namespace {

namespace fs = std::filesystem;

/// Pages of the host.
class Pages {
 public:
  explicit Pages(std::size_t bytes) : bytes_(bytes) { map(nullptr, 0); }
  ~Pages() { ::munmap(at_, bytes_); }
  Pages(const Pages&) = delete;
  char* data() const { return static_cast<char*>(at_); }
  std::size_t size() const { return bytes_; }
  std::string text() const { return {data(), bytes_}; }
  /// Others at the same address.
  void renew() { map(at_, MAP_FIXED); }
  void forbid() { ::mprotect(at_, bytes_, PROT_NONE); }

 private:
  void map(void* at, int flags) {
    at_ = ::mmap(at, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (at_ == MAP_FAILED) throw Skip(std::string("has no memory for it: ") + std::strerror(errno) + ".");
  }
  std::size_t bytes_;
  void* at_ = nullptr;
};

void check_done(const Context& context, const ComponentManifest& component) {
  constexpr std::size_t kBytes = 300'001, kReads = 8;
  OffloadUnderTest offload(context, component);
  auto random = context.random();
  const std::string data = random_bytes(random, kBytes);
  std::string memory = data;
  expect(offload.register_buffer(1, kBytes) && offload.move(write_of(1, 0, memory.data(), kBytes)),
         "cannot write a buffer.");
  memory.assign(kBytes, 'x');

  std::vector<std::unique_ptr<GuardedBytes>> backs;
  for (std::size_t i = 0; i < kReads; ++i) {
    backs.push_back(std::make_unique<GuardedBytes>(kBytes));
    const auto ticket = offload.read(1, backs[i]->data(), kBytes);
    expect(offload.wait(ticket), "cannot read a buffer.");
    expect(backs[i]->text() == data, "a write reads its memory again when it is done.");
    backs[i]->check("a read");
    backs[i]->fill('y');
  }
  offload.destroy();
  for (const auto& back : backs) {
    back->check("a read that was done");
    expect(back->text() == std::string(kBytes, 'y'), "a read changes its memory again when it is done.");
  }
}

/// A write from `from` and a read to `to`, all of it.
void round_trip(OffloadUnderTest& offload, std::mt19937_64& random, std::uint64_t buffer, char* from, char* to,
                std::size_t bytes, const std::string& what) {
  const std::string data = random_bytes(random, bytes);
  data.copy(from, bytes);
  offload.demand(offload.move(write_of(buffer, 0, from, bytes)), "cannot write " + what);
  if (to == from) std::fill_n(to, bytes, '\0');
  offload.demand(offload.move(read_of(buffer, 0, to, bytes)), "cannot read " + what);
  expect(std::memcmp(to, data.data(), bytes) == 0, "bytes come back changed " + what + ".");
}

void check_lend(const Context& context, const ComponentManifest& component) {
  constexpr std::size_t kBytes = 2 << 20;
  OffloadUnderTest offload(context, component);
  if (!offload.can_lend()) throw Skip("has no lend and take_back.");
  auto random = context.random();
  Pages lent(kBytes), second(kBytes), other(kBytes);
  const std::string data = random_bytes(random, kBytes);
  data.copy(lent.data(), kBytes);
  expect(offload.register_buffer(1, kBytes), "cannot register a buffer of 2 MiB.");
  const bool first = offload.lend(lent.data(), kBytes);
  expect(lent.text() == data, "lend changes the memory.");
  const bool both = offload.lend(second.data(), kBytes);

  round_trip(offload, random, 1, lent.data(), lent.data(), kBytes, "through lent memory");
  round_trip(offload, random, 1, lent.data(), second.data(), kBytes, "through two pieces of lent memory");
  round_trip(offload, random, 1, other.data(), lent.data(), kBytes,
             "through memory that was not lent, and lent memory");
  round_trip(offload, random, 1, other.data(), other.data(), kBytes, "through memory that was not lent");
  round_trip(offload, random, 1, lent.data() + 1, second.data() + 4097, kBytes / 3, "through a part of lent memory");

  if (first) offload.take_back(lent.data());
  lent.renew();  // what was registered of it is not there any more
  round_trip(offload, random, 1, lent.data(), lent.data(), kBytes, "through memory that was taken back");
  round_trip(offload, random, 1, second.data(), second.data(), kBytes, "through memory that is still lent");
  if (both) offload.take_back(second.data());
  expect_no_leak("lend and take_back", [&] {
    if (offload.lend(lent.data(), kBytes)) offload.take_back(lent.data());
  });
}

void check_free_bytes(OffloadUnderTest& offload, std::uint64_t free_bytes) {
  constexpr std::uint64_t kMuch = std::uint64_t{1} << 60;
  if (free_bytes >= 1 << 20) {
    offload.demand(offload.register_buffer(100, 1 << 20),
                   "says that " + std::to_string(free_bytes) + " bytes are free, and refuses a buffer of 1 MiB");
  }
  if (free_bytes >= kMuch) return;  // or not known
  expect(!offload.register_buffer(101, kMuch), "says that " + std::to_string(free_bytes) +
                                                   " bytes are free, and takes a buffer of 2^60: register_buffer "
                                                   "reserves the room.");
}

void check_facts(const Context& context, const ComponentManifest& component) {
  OffloadUnderTest offload(context, component);
  const auto facts = offload.facts();
  if (!facts) throw Skip("has no facts.");
  const std::uint64_t alignment = facts->alignment;
  expect(alignment > 0 && (alignment & (alignment - 1)) == 0 && alignment <= 2 << 20,
         "says that its alignment is " + std::to_string(alignment) + ": it must be a power of two up to 2 MiB.");
  expect(facts->in_flight_bytes > 0, "says that 0 bytes in flight keep it busy.");

  const std::uint64_t bytes = 8 * alignment;
  auto random = context.random();
  const std::string data = random_bytes(random, bytes);
  expect(offload.register_buffer(1, bytes), "cannot register a buffer of 8 times its alignment.");
  // Odd multiples: memory that would do for twice the alignment proves nothing.
  GuardedBytes from(bytes, 2 * alignment, alignment), to(bytes, 2 * alignment, alignment);
  from.fill(data);
  for (const std::uint64_t unit : {1, 3}) {
    for (std::uint64_t offset = 0; offset < bytes; offset += unit * alignment) {
      const std::uint64_t length = std::min(unit * alignment, bytes - offset);
      const std::string what = " " + std::to_string(length) + " bytes at " + std::to_string(offset) +
                               ", multiples of the alignment that it gives, " + std::to_string(alignment);
      offload.demand(offload.move(write_of(1, offset, from.data() + offset, length)), "cannot write" + what);
      offload.demand(offload.move(read_of(1, offset, to.data() + offset, length)), "cannot read" + what);
      expect(std::memcmp(to.data() + offset, data.data() + offset, length) == 0, "gives back other" + what + ".");
    }
  }
  check_free_bytes(offload, facts->free_bytes);
}

void check_release(const Context& context, const ComponentManifest& component) {
  constexpr std::size_t kBytes = 100'003;
  OffloadUnderTest offload(context, component);
  if (!offload.can_release()) throw Skip("has no release_buffer.");
  auto random = context.random();
  const std::string kept = random_bytes(random, kBytes), data = random_bytes(random, kBytes);
  std::string back(kBytes, '\0');
  std::uint64_t last = 2;
  expect(offload.register_buffer(1, kBytes) && offload.register_buffer(last, kBytes) &&
             offload.move(write_of(1, 0, kept.data(), kBytes)) && offload.move(write_of(last, 0, data.data(), kBytes)),
         "cannot write a buffer.");
  const auto replace = [&] {
    offload.demand(offload.release_buffer(last), "cannot release a buffer");
    offload.demand(offload.register_buffer(++last, kBytes) && offload.move(write_of(last, 0, data.data(), kBytes)),
                   "cannot write a buffer that came after one was released");
  };
  const auto holds = [&](std::uint64_t buffer, const std::string& bytes) {
    return offload.move(read_of(buffer, 0, back.data(), kBytes)) && back == bytes;
  };
  for (int round = 0; round < 4; ++round) {
    replace();
    expect(holds(1, kept), "a buffer changes when another one is released, and a third one is written.");
    expect(holds(last, data), "a buffer that came after one was released comes back changed.");
  }
  expect_no_leak("register_buffer and release_buffer", replace);
}

void check_destroy(const Context& context, const ComponentManifest& component) {
  constexpr std::size_t kTickets = 16, kBytes = 256 << 10, kRounds = 6;
  OffloadUnderTest(context, component)
      .destroy();  // what a first one leaves for the next ones is create_footprint's matter
  const Footprint before;
  auto random = context.random();
  const std::string data = random_bytes(random, kTickets * kBytes);
  std::vector<std::unique_ptr<Pages>> memory;
  for (std::size_t round = 0; round < kRounds; ++round) {
    memory.push_back(std::make_unique<Pages>(kTickets * kBytes));
    Pages& pages = *memory.back();
    data.copy(pages.data(), data.size());
    OffloadUnderTest offload(context, component);
    for (std::size_t i = 0; i < kTickets; ++i) {
      char* const at = pages.data() + i * kBytes;
      expect(offload.register_buffer(i, kBytes) && offload.move(write_of(i, 0, at, kBytes)), "cannot write a buffer.");
    }
    for (std::size_t i = 0; i < kTickets; ++i) {
      char* const at = pages.data() + i * kBytes;
      expect((i % 2 ? offload.read(i, at, kBytes) : offload.write(i, at, kBytes)).has_value(), "refuses a transfer.");
    }
    offload.destroy();
    if (round % 2 == 0) {
      pages.forbid();
    } else {
      std::fill_n(pages.data(), pages.size(), 'z');
    }
  }
  expect(threads_end(before.threads), "leaves a thread when it is destroyed with transfers under way.");
  for (std::size_t round = 1; round < kRounds; round += 2) {
    expect(memory[round]->text() == std::string(kTickets * kBytes, 'z'),
           "changes the host's memory after it was destroyed with transfers under way.");
  }
  expect(Footprint().files <= before.files, "leaves a file open when it is destroyed with transfers under way.");
  for (const auto& entry : fs::recursive_directory_iterator(".")) {
    expect(!entry.is_regular_file(), "leaves the file '" + entry.path().filename().string() + "' behind.");
  }
}

void check_stats(const Context& context, const ComponentManifest& component) {
  OffloadUnderTest offload(context, component);
  const std::string data(1000, 's');
  expect(offload.register_buffer(1, data.size()) && offload.wait(offload.write(1, data.data(), data.size())),
         "cannot write a buffer.");
  const auto text = offload.stats();
  if (!text) throw Skip("has no stats.");
  Json stats;
  try {
    stats = Json::parse(*text);
  } catch (const std::exception& error) {
    throw Broken(std::string("its stats are not JSON: ") + error.what());
  }
  expect(stats.is_object(), "its stats are not an object: " + *text);
  const Json* about = stats.find("about");
  expect(!about || (about->is_string() && about->as_string().find('\n') == std::string::npos),
         "\"about\" in its stats must be a text of one line: " + *text);
}

}  // namespace

Cases offload_memory_cases(const ComponentManifest& component) {
  const std::string prefix = "offload/" + component.type + "/";
  const auto bound = [component](auto check) {
    return [component, check](const Context& context) { check(context, component); };
  };
  return {
      {prefix + "done", "Memory is not touched any more when a ticket is done.", bound(check_done)},
      {prefix + "lend", "Transfers go through lent memory and through other memory, before and after it is taken back.",
       bound(check_lend)},
      {prefix + "facts", "Its facts are so: the alignment does, and what does not fit is refused by register_buffer.",
       bound(check_facts)},
      {prefix + "release", "A buffer is released alone, and keeps nothing.", bound(check_release)},
      {prefix + "destroy", "Destroyed with transfers under way, it touches nothing and leaves nothing.",
       bound(check_destroy)},
      {prefix + "stats", "Its stats are an object of JSON, \"about\" in it a line of text.", bound(check_stats)},
  };
}

}  // namespace capstan::conformance
