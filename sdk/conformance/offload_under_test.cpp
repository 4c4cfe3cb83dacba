#include "sdk/conformance/offload_under_test.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "core/registry/plugin_call.hpp"

namespace capstan::conformance {
namespace {

namespace fs = std::filesystem;

constexpr char kGuardByte = '\x5a';

/// Open files that have a place on a disk and may be written: not a pipe, nor memory that is a file by name alone.
std::set<int> files_for_writing() {
  std::set<int> files;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    const int file = std::stoi(entry.path().filename().string());
    struct stat facts {};
    std::error_code gone;
    const std::string name = fs::read_symlink(entry.path(), gone).string();
    const int flags = ::fcntl(file, F_GETFL);
    if (gone || flags < 0 || (flags & O_ACCMODE) == O_RDONLY || name.starts_with("/memfd:")) continue;
    if (::fstat(file, &facts) == 0 && S_ISREG(facts.st_mode)) files.insert(file);
  }
  return files;
}

}  // namespace

capstan_range write_of(std::uint64_t buffer, std::uint64_t offset, const void* memory, std::uint64_t bytes) {
  return {sizeof(capstan_range), 1, buffer, offset, bytes, const_cast<void*>(memory)};
}

capstan_range read_of(std::uint64_t buffer, std::uint64_t offset, void* memory, std::uint64_t bytes) {
  return {sizeof(capstan_range), 0, buffer, offset, bytes, memory};
}

OffloadUnderTest::OffloadUnderTest(const Context& context, const ComponentManifest& manifest)
    : files_before_(files_for_writing()),
      component_(std::make_unique<ComponentUnderTest>(context, manifest)),
      table_(component_->vtable<capstan_offload>()) {
  expect(CAPSTAN_HAS(table_, lend) == CAPSTAN_HAS(table_, take_back),
         "has one of lend and take_back, which come together.");
}

bool OffloadUnderTest::can_lend() const { return CAPSTAN_HAS(table_, lend); }
bool OffloadUnderTest::has_fault() const { return CAPSTAN_HAS(table_, fault); }
bool OffloadUnderTest::can_release() const { return CAPSTAN_HAS(table_, release_buffer); }

template <class Call>
bool OffloadUnderTest::ask(const std::string& what, Call&& call) {
  return may_refuse(what, [&](capstan_error* error) {
    const capstan_status status = call(component_->self(), error);
    if (status != CAPSTAN_OK) refusal_ = error->text;
    return status;
  });
}

void OffloadUnderTest::demand(bool worked, const std::string& text) const {
  expect(worked, text + (refusal_.empty() ? "." : ": " + refusal_));
}

bool OffloadUnderTest::register_buffer(std::uint64_t buffer, std::uint64_t bytes) {
  return ask("register_buffer",
             [&](void* self, capstan_error* error) { return table_->register_buffer(self, buffer, bytes, error); });
}

bool OffloadUnderTest::release_buffer(std::uint64_t buffer) {
  return ask("release_buffer",
             [&](void* self, capstan_error* error) { return table_->release_buffer(self, buffer, error); });
}

std::optional<OffloadUnderTest::Ticket> OffloadUnderTest::write(std::uint64_t buffer, const void* from,
                                                                std::uint64_t bytes) {
  const capstan_range range = write_of(buffer, 0, from, bytes);
  return start({&range, 1});
}

std::optional<OffloadUnderTest::Ticket> OffloadUnderTest::read(std::uint64_t buffer, void* to, std::uint64_t bytes) {
  const capstan_range range = read_of(buffer, 0, to, bytes);
  return start({&range, 1});
}

std::optional<OffloadUnderTest::Ticket> OffloadUnderTest::start(std::span<const capstan_range> ranges) {
  std::vector<const capstan_range*> pointers;
  for (const capstan_range& range : ranges) pointers.push_back(&range);
  Ticket ticket = 0;
  const bool taken = ask("start", [&](void* self, capstan_error* error) {
    return table_->start(self, pointers.data(), pointers.size(), &ticket, error);
  });
  return taken ? std::optional(ticket) : std::nullopt;
}

std::optional<int> OffloadUnderTest::poll(Ticket ticket) {
  int done = 0;
  const bool worked =
      ask("poll", [&](void* self, capstan_error* error) { return table_->poll(self, ticket, &done, error); });
  return worked ? std::optional(done) : std::nullopt;
}

bool OffloadUnderTest::wait(std::optional<Ticket> ticket) {
  while (ticket) {
    const std::optional<int> done = poll(*ticket);
    if (!done || *done != 0) return done.has_value();
    std::this_thread::yield();
  }
  return false;
}

std::optional<capstan_offload_facts> OffloadUnderTest::facts() {
  if (!CAPSTAN_HAS(table_, facts)) return std::nullopt;
  struct {
    capstan_offload_facts facts;
    std::uint64_t behind;
  } room{{sizeof(capstan_offload_facts), 0, 0, 0}, 0x5a5a5a5a5a5a5a5a};
  must("facts", [&](capstan_error* error) { return table_->facts(component_->self(), &room.facts, error); });
  expect(room.behind == 0x5a5a5a5a5a5a5a5a, "facts writes behind the struct that it was given.");
  return room.facts;
}

std::optional<capstan_offload_fault> OffloadUnderTest::fault(Ticket ticket) {
  if (!has_fault()) return std::nullopt;
  capstan_offload_fault fault{sizeof(capstan_offload_fault), 0, 0, 0, 0, 0, 0};
  must("fault", [&](capstan_error* error) { return table_->fault(component_->self(), ticket, &fault, error); });
  return fault;
}

bool OffloadUnderTest::lend(void* memory, std::uint64_t bytes) {
  return ask("lend", [&](void* self, capstan_error* error) { return table_->lend(self, memory, bytes, error); });
}

void OffloadUnderTest::take_back(void* memory) { table_->take_back(component_->self(), memory); }

std::optional<std::string> OffloadUnderTest::stats() {
  if (!CAPSTAN_HAS(table_, stats)) return std::nullopt;
  capstan_sink sink;
  must("stats", [&](capstan_error* error) { return table_->stats(component_->self(), &sink, error); });
  return sink.text;
}

std::vector<int> OffloadUnderTest::files() const {
  const std::set<int> now = files_for_writing();
  std::vector<int> made;
  std::set_difference(now.begin(), now.end(), files_before_.begin(), files_before_.end(), std::back_inserter(made));
  return made;
}

GuardedBytes::GuardedBytes(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t displaced)
    : bytes_(bytes), room_(bytes + displaced + 2 * alignment + 2 * kGuard, kGuardByte) {
  const auto begin = reinterpret_cast<std::uintptr_t>(room_.data()) + kGuard;
  data_ = room_.data() + kGuard + ((begin + alignment - 1) / alignment * alignment - begin) + displaced;
}

void GuardedBytes::check(const std::string& what) const {
  const auto kept = [](char byte) { return byte == kGuardByte; };
  const auto size = static_cast<std::ptrdiff_t>(bytes_);
  expect(std::all_of(room_.data(), const_cast<const char*>(data_), kept), what + " changes memory before its range.");
  expect(std::all_of(const_cast<const char*>(data_) + size, room_.data() + room_.size(), kept),
         what + " changes memory behind its range.");
}

std::string random_bytes(std::mt19937_64& random, std::size_t count) {
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

}  // namespace capstan::conformance
