#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "sdk/conformance/footprint.hpp"
#include "sdk/conformance/offload_under_test.hpp"

/// What every component of kind offload does with whole buffers.
namespace capstan::conformance {
namespace {

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
  expect_no_leak("start and poll", [&] {
    offload.wait(offload.write(1, data.data(), data.size()));
    const auto read = offload.read(1, data.data(), data.size());
    expect(offload.wait(read), "cannot read a buffer.");
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
      {prefix + "fork", "A fork does not disturb transfers.", bound(check_fork)},
      {prefix + "calls_leak", "Calls keep no memory, however many a run makes.", bound(check_transfer_leak)},
  };
}

}  // namespace capstan::conformance
