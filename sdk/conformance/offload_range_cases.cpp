#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <future>
#include <set>
#include <utility>

#include "sdk/conformance/offload_under_test.hpp"

/// What components of kind offload that move ranges do with them: any range, any number, in order, from any thread.
namespace capstan::conformance {
namespace {

using Ticket = OffloadUnderTest::Ticket;

/// Pieces [begin, end) that make up `size` bytes, in a random order: of one byte, of odd sizes, of whole sectors and
/// pages.
std::vector<std::pair<std::uint64_t, std::uint64_t>> pieces(std::mt19937_64& random, std::uint64_t size,
                                                            std::size_t count) {
  std::set<std::uint64_t> cuts = {0, size};
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t cut = random() % size;
    const std::uint64_t unit = std::array{1, 1, 512, 4096}[i % 4];
    cuts.insert(cut / unit * unit);
    if (i % 5 == 0) cuts.insert(std::min(cut / unit * unit + 1, size));
  }
  std::vector<std::pair<std::uint64_t, std::uint64_t>> made;
  for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) made.emplace_back(*cut, *std::next(cut));
  std::shuffle(made.begin(), made.end(), random);
  return made;
}

void check_ranges(const Context& context, const ComponentManifest& component) {
  constexpr std::uint64_t kBytes = 300'007;
  OffloadUnderTest offload(context, component);
  auto random = context.random();
  std::string image = random_bytes(random, kBytes);
  expect(offload.register_buffer(1, kBytes), "cannot register a buffer of 300007 bytes.");
  expect(offload.move(write_of(1, 0, image.data(), kBytes)), "cannot write a whole buffer.");
  for (std::size_t round = 0; round < 24; ++round) {
    const std::uint64_t displaced = std::array{0, 1, 64, 513}[round % 4];
    GuardedBytes memory(kBytes, 4096, displaced);
    memory.fill(random_bytes(random, kBytes));
    std::vector<capstan_range> writes, reads;
    for (const auto& [begin, end] : pieces(random, kBytes, 1 + round)) {
      if (random() % 2 == 0) continue;
      writes.push_back(write_of(1, begin, memory.data() + begin, end - begin));
      image.replace(begin, end - begin, memory.data() + begin, end - begin);
    }
    offload.demand(writes.empty() || offload.move(writes),
                   "cannot write " + std::to_string(writes.size()) + " ranges with one start");
    memory.check("a write");

    GuardedBytes back(kBytes, 4096, displaced);
    for (const auto& [begin, end] : pieces(random, kBytes, 2 * round)) {
      reads.push_back(read_of(1, begin, back.data() + begin, end - begin));
    }
    offload.demand(offload.move(reads), "cannot read " + std::to_string(reads.size()) + " ranges with one start");
    back.check("a read");
    expect(back.text() == image, "ranges come back changed: " + std::to_string(writes.size()) +
                                     " were written, of memory " + std::to_string(displaced) + " beside a page.");
  }
}

struct Transfer {
  capstan_range range;
  std::string memory, expected;
};

/// Transfers of parts of a buffer that holds `image`, which becomes what it holds when they are done in this order.
std::vector<Transfer> overlapping(std::mt19937_64& random, std::uint64_t buffer, std::string& image) {
  std::vector<Transfer> all(24);
  for (std::size_t i = 0; i < all.size(); ++i) {
    // Long ones first, so that a short one behind it could overtake it.
    const std::uint64_t bytes = image.size();
    const std::uint64_t length = i % 3 == 0 ? bytes - random() % (bytes / 4) : 1 + random() % (bytes / 8);
    const std::uint64_t offset = random() % (bytes - length + 1);
    Transfer& one = all[i];
    if (random() % 5 < 3) {
      one.memory = random_bytes(random, length);
      one.range = write_of(buffer, offset, one.memory.data(), length);
      image.replace(offset, length, one.memory);
    } else {
      one.memory.assign(length, '\0');
      one.range = read_of(buffer, offset, one.memory.data(), length);
      one.expected = image.substr(offset, length);
    }
  }
  return all;
}

/// Starts them all before the first is waited for.
void move_overlapping(OffloadUnderTest& offload, std::mt19937_64& random, std::uint64_t buffer, std::uint64_t bytes) {
  std::string image = random_bytes(random, bytes), back(bytes, '\0');
  expect(offload.register_buffer(buffer, bytes) && offload.move(write_of(buffer, 0, image.data(), bytes)),
         "cannot write a buffer.");
  const std::vector<Transfer> all = overlapping(random, buffer, image);
  std::vector<std::optional<Ticket>> tickets;
  tickets.reserve(all.size());
  for (const Transfer& one : all) tickets.push_back(offload.start({&one.range, 1}));
  std::shuffle(tickets.begin(), tickets.end(), random);
  for (const auto& ticket : tickets) {
    offload.demand(offload.wait(ticket), "a transfer fails that overlaps others");
  }
  for (const Transfer& one : all) {
    expect(one.range.write != 0 || one.memory == one.expected,
           "a read does not give what the last write that was started before it wrote.");
  }
  expect(offload.move(read_of(buffer, 0, back.data(), bytes)), "cannot read a buffer.");
  expect(back == image, "overlapping writes do not keep the order in which they were started.");
}

void check_overlaps(const Context& context, const ComponentManifest& component) {
  OffloadUnderTest offload(context, component);
  auto random = context.random();
  for (std::uint64_t buffer = 1; buffer <= 8; ++buffer) move_overlapping(offload, random, buffer, 100'003);
  for (std::uint64_t buffer = 9; buffer <= 10; ++buffer) move_overlapping(offload, random, buffer, 2'000'003);
}

void check_many_ranges(const Context& context, const ComponentManifest& component) {
  constexpr std::uint64_t kBuffers = 8, kRanges = 100, kRange = 4096, kBytes = kRanges * kRange;
  OffloadUnderTest offload(context, component);
  auto random = context.random();
  std::string data = random_bytes(random, kBuffers * kBytes), back(data.size(), '\0');
  std::vector<capstan_range> writes, reads;
  for (std::uint64_t i = 0; i < kBuffers * kRanges; ++i) {
    // Every other border is moved by one byte.
    const std::uint64_t moved = i % 2, offset = i % kRanges * kRange + moved, bytes = moved ? kRange - 1 : kRange + 1;
    writes.push_back(write_of(i / kRanges, offset, data.data() + i * kRange + moved, bytes));
    reads.push_back(read_of(i / kRanges, offset, back.data() + i * kRange + moved, bytes));
  }
  for (std::uint64_t i = 0; i < kBuffers; ++i) expect(offload.register_buffer(i, kBytes), "cannot register a buffer.");
  std::shuffle(writes.begin(), writes.end(), random);
  std::shuffle(reads.begin(), reads.end(), random);
  offload.demand(offload.move(writes) && offload.move(reads), "a ticket of 800 ranges fails");
  expect(data == back, "of 800 ranges of one ticket some come back changed.");
}

void check_tickets(const Context& context, const ComponentManifest& component) {
  constexpr std::size_t kTickets = 40, kBytes = 200'003;
  OffloadUnderTest offload(context, component);
  auto random = context.random();
  std::vector<std::string> data, back(kTickets, std::string(kBytes, '\0'));
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < kTickets; ++i) {
    data.push_back(random_bytes(random, kBytes));
    order.push_back(i);
    expect(offload.register_buffer(i, kBytes) && offload.move(write_of(i, 0, data[i].data(), kBytes)),
           "cannot write a buffer.");
  }
  std::vector<std::optional<Ticket>> tickets;
  for (std::size_t i = 0; i < kTickets; ++i) tickets.push_back(offload.read(i, back[i].data(), kBytes));
  std::shuffle(order.begin(), order.end(), random);
  for (const std::size_t i : order) {
    offload.demand(tickets[i].has_value(), "refuses a transfer with 40 in flight");
    offload.demand(offload.wait(tickets[i]), "poll fails for one of 40 tickets");
    expect(data[i] == back[i], "poll ends a ticket, and its bytes are not there.");
  }
}

/// Whether the first poll of a transfer slept until it was done.
bool poll_sleeps(OffloadUnderTest& offload, const capstan_range& range) {
  const auto switches = [] {
    rusage used{};
    ::getrusage(RUSAGE_THREAD, &used);
    return used.ru_nvcsw;
  };
  const auto ticket = offload.start({&range, 1});
  offload.demand(ticket.has_value(), "refuses a transfer");
  const long before = switches();
  const std::optional<int> done = offload.poll(*ticket);
  const bool slept = switches() > before;
  offload.demand(done && (*done != 0 || offload.wait(ticket)), "poll fails");
  return *done != 0 && slept;
}

void check_poll(const Context& context, const ComponentManifest& component) {
  constexpr std::size_t kBytes = 8 << 20;
  constexpr int kRounds = 12;
  OffloadUnderTest offload(context, component);
  std::string data(kBytes, 'p'), back(kBytes, '\0');
  expect(offload.register_buffer(1, kBytes), "cannot register a buffer of 8 MiB.");
  int slept = 0;
  for (int round = 0; round < kRounds; ++round) {
    slept +=
        poll_sleeps(offload, round % 2 == 0 ? write_of(1, 0, data.data(), kBytes) : read_of(1, 0, back.data(), kBytes));
  }
  expect(data == back, "polled to their end, transfers come back changed.");
  // A transfer may be done by chance while poll waits for a lock.
  expect(slept < kRounds * 2 / 3, "poll blocks: in " + std::to_string(slept) + " of " + std::to_string(kRounds) +
                                      " transfers it slept until the transfer was done.");
}

template <class Body>
void in_another_thread(Body&& body) {
  std::async(std::launch::async, std::forward<Body>(body)).get();
}

void check_threads(const Context& context, const ComponentManifest& component) {
  constexpr std::size_t kBytes = 1 << 20, kBuffers = 8;
  OffloadUnderTest offload(context, component);
  auto random = context.random();
  std::vector<std::string> data, back(kBuffers, std::string(kBytes, '\0'));
  std::vector<std::optional<Ticket>> tickets(kBuffers);
  const auto end = [&](std::size_t i) {
    offload.demand(offload.wait(tickets[i]), "a ticket that another thread began, which has ended, fails");
  };
  for (std::size_t i = 0; i < kBuffers; ++i) {
    data.push_back(random_bytes(random, kBytes));
    in_another_thread([&] { expect(offload.register_buffer(i, kBytes), "cannot register a buffer."); });
  }
  for (std::size_t i = 0; i < kBuffers; ++i) {
    in_another_thread([&] { tickets[i] = offload.write(i, data[i].data(), kBytes); });
  }
  for (std::size_t i = 0; i < kBuffers; ++i) in_another_thread([&] { end(i); });
  for (std::size_t i = 0; i < kBuffers; ++i) {
    in_another_thread([&] { tickets[i] = offload.read(i, back[i].data(), kBytes); });
  }
  for (std::size_t i = 0; i < kBuffers; ++i) end(i);
  expect(data == back, "called from several threads, transfers come back changed.");
}

}  // namespace

Cases offload_range_cases(const ComponentManifest& component) {
  const std::string prefix = "offload/" + component.type + "/";
  const auto bound = [component](auto check) {
    return [component, check](const Context& context) { check(context, component); };
  };
  return {
      {prefix + "ranges", "Ranges of any offset and length come back as they were, many in one start.",
       bound(check_ranges)},
      {prefix + "overlaps", "Ranges of one buffer that overlap keep the order of their calls.", bound(check_overlaps)},
      {prefix + "many_ranges", "One ticket may have hundreds of ranges.", bound(check_many_ranges)},
      {prefix + "tickets", "Tickets are ended in any order; then their bytes are there.", bound(check_tickets)},
      {prefix + "poll", "poll never blocks, and comes to done.", bound(check_poll)},
      {prefix + "threads", "Calls come from any thread, one at a time.", bound(check_threads)},
  };
}

}  // namespace capstan::conformance
