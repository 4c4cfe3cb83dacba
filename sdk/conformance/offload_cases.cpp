#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>

#include "sdk/conformance/component_under_test.hpp"
#include "sdk/conformance/footprint.hpp"

namespace capstan::conformance {
namespace {

class OffloadUnderTest {
 public:
  OffloadUnderTest(const Context& context, const ComponentManifest& manifest)
      : component_(context, manifest), table_(component_.vtable<capstan_offload>()) {}

  bool register_buffer(std::uint64_t id, std::uint64_t bytes) {
    return may_refuse("register_buffer", [&](capstan_error* error) {
      return table_->register_buffer(component_.self(), id, bytes, error);
    });
  }
  /// A ticket, or nothing when it was refused.
  std::optional<std::uint64_t> write(std::uint64_t id, const void* from, std::uint64_t bytes) {
    std::uint64_t ticket = 0;
    const bool taken = may_refuse("write_async", [&](capstan_error* error) {
      return table_->write_async(component_.self(), id, from, bytes, &ticket, error);
    });
    return taken ? std::optional(ticket) : std::nullopt;
  }
  std::optional<std::uint64_t> read(std::uint64_t id, void* to, std::uint64_t bytes) {
    std::uint64_t ticket = 0;
    const bool taken = may_refuse("read_async", [&](capstan_error* error) {
      return table_->read_async(component_.self(), id, to, bytes, &ticket, error);
    });
    return taken ? std::optional(ticket) : std::nullopt;
  }
  bool wait(std::optional<std::uint64_t> ticket) {
    return ticket &&
           may_refuse("wait", [&](capstan_error* error) { return table_->wait(component_.self(), *ticket, error); });
  }

 private:
  ComponentUnderTest component_;
  const capstan_offload* table_;
};

std::string random_bytes(std::mt19937_64& random, std::size_t count) {
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

void check_sizes(const Context& context, const ComponentManifest& component) {
  OffloadUnderTest offload(context, component);
  auto random = context.random();
  std::uint64_t id = 0;
  for (const std::size_t size : {1u, 511u, 512u, 513u, 4095u, 4096u, 4097u, 1'000'003u}) {
    for (const std::size_t misaligned : {0u, 1u, 64u}) {
      const std::string data = random_bytes(random, size + misaligned);
      std::string back(size + misaligned, '\0');
      expect(offload.register_buffer(++id, size), "cannot register a buffer of " + std::to_string(size) + " bytes.");
      expect(offload.wait(offload.write(id, data.data() + misaligned, size)) &&
                 offload.wait(offload.read(id, back.data() + misaligned, size)),
             "cannot write and read " + std::to_string(size) + " bytes.");
      expect(std::memcmp(data.data() + misaligned, back.data() + misaligned, size) == 0,
             std::to_string(size) + " bytes at alignment " + std::to_string(misaligned) + " come back changed.");
    }
  }
}

void check_many_in_flight(const Context& context, const ComponentManifest& component) {
  constexpr std::size_t kBuffers = 64, kBytes = 65'537;
  OffloadUnderTest offload(context, component);
  auto random = context.random();
  std::vector<std::string> data, back(kBuffers, std::string(kBytes, '\0'));
  std::vector<std::optional<std::uint64_t>> tickets;
  for (std::size_t i = 0; i < kBuffers; ++i) {
    data.push_back(random_bytes(random, kBytes));
    offload.register_buffer(i, kBytes);
  }
  for (std::size_t i = 0; i < kBuffers; ++i) tickets.push_back(offload.write(i, data[i].data(), kBytes));
  for (auto ticket = tickets.rbegin(); ticket != tickets.rend(); ++ticket) {
    expect(offload.wait(*ticket), "a write with 64 in flight fails.");
  }
  tickets.clear();
  for (std::size_t i = 0; i < kBuffers; ++i) tickets.push_back(offload.read(i, back[i].data(), kBytes));
  for (const auto& ticket : tickets) expect(offload.wait(ticket), "a read with 64 in flight fails.");
  expect(data == back, "with 64 transfers in flight, data come back changed.");
}

void check_order(const Context& context, const ComponentManifest& component) {
  OffloadUnderTest offload(context, component);
  const std::string first(10'000, 'a'), second(10'000, 'b');
  std::string back(10'000, '\0');
  offload.register_buffer(1, back.size());
  const auto one = offload.write(1, first.data(), first.size());
  const auto two = offload.write(1, second.data(), second.size());
  const auto read = offload.read(1, back.data(), back.size());
  expect(offload.wait(one) && offload.wait(two) && offload.wait(read), "cannot queue transfers of one buffer.");
  expect(back == second, "a read does not see the write before it.");
}

void check_short_read(const Context& context, const ComponentManifest& component) {
  OffloadUnderTest offload(context, component);
  std::string back(4096, '\0');
  offload.register_buffer(1, back.size());
  expect(!offload.wait(offload.read(1, back.data(), back.size())), "reading what was never written is not an error.");
}

void check_full_disk(const Context& context, const ComponentManifest& component) {
  OffloadUnderTest offload(context, component);
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit little{4096, 4096};
  ::setrlimit(RLIMIT_FSIZE, &little);
  const std::string data(1 << 20, 'x');
  if (!offload.register_buffer(1, data.size())) return;
  expect(!offload.wait(offload.write(1, data.data(), data.size())), "a write to a full disk is not an error.");
}

void check_fork(const Context& context, const ComponentManifest& component) {
  OffloadUnderTest offload(context, component);
  const std::string data(100'000, 'f');
  std::string back(100'000, '\0');
  offload.register_buffer(1, data.size());
  const auto write = offload.write(1, data.data(), data.size());
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  expect(offload.wait(write) && offload.wait(offload.read(1, back.data(), back.size())) && back == data,
         "a fork during a transfer damages it.");
}

void check_transfer_leak(const Context& context, const ComponentManifest& component) {
  OffloadUnderTest offload(context, component);
  std::string data(10'000, 'c');
  offload.register_buffer(1, data.size());
  expect_no_leak("write_async and read_async", [&] {
    offload.wait(offload.write(1, data.data(), data.size()));
    offload.wait(offload.read(1, data.data(), data.size()));
  });
}

}  // namespace

Cases offload_cases(const ComponentManifest& component) {
  const std::string prefix = "offload/" + component.type + "/";
  const auto bound = [component](auto check) {
    return [component, check](const Context& context) { check(context, component); };
  };
  return {
      {prefix + "sizes", "Any size and alignment comes back as it was.", bound(check_sizes)},
      {prefix + "in_flight", "64 transfers may be in flight, waited for in any order.", bound(check_many_in_flight)},
      {prefix + "order", "Transfers of one buffer keep their order.", bound(check_order)},
      {prefix + "short_read", "Reading what was never written is an error with a text.", bound(check_short_read)},
      {prefix + "full_disk", "A full disk is an error with a text.", bound(check_full_disk)},
      {prefix + "fork", "A fork does not disturb transfers.", bound(check_fork)},
      {prefix + "calls_leak", "Calls keep no memory, however many a run makes.", bound(check_transfer_leak)},
  };
}

}  // namespace capstan::conformance
