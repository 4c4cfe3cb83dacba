#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "capstan/plugin.h"
#include "sdk/conformance/component_under_test.hpp"

namespace capstan::conformance {

/// Bytes of a buffer, and the memory that they come from or go to.
capstan_range write_of(std::uint64_t buffer, std::uint64_t offset, const void* memory, std::uint64_t bytes);
capstan_range read_of(std::uint64_t buffer, std::uint64_t offset, void* memory, std::uint64_t bytes);

/// A component of kind offload, by its table. The functions that may refuse return whether they did not, and demand a
/// text when they did.
class OffloadUnderTest {
 public:
  using Ticket = std::uint64_t;

  OffloadUnderTest(const Context& context, const ComponentManifest& manifest);

  bool can_lend() const;
  bool has_fault() const;
  bool can_release() const;

  bool register_buffer(std::uint64_t buffer, std::uint64_t bytes);
  bool release_buffer(std::uint64_t buffer);
  /// A whole buffer. A ticket, or nothing when it was refused.
  std::optional<Ticket> write(std::uint64_t buffer, const void* from, std::uint64_t bytes);
  std::optional<Ticket> read(std::uint64_t buffer, void* to, std::uint64_t bytes);
  std::optional<Ticket> start(std::span<const capstan_range> ranges);
  /// 1: done, 0: not yet; nothing: it failed.
  std::optional<int> poll(Ticket ticket);
  /// Polls until it is done. False where it failed, or was refused.
  bool wait(std::optional<Ticket> ticket);
  /// Starts them and waits: whether all of that worked.
  bool move(std::span<const capstan_range> ranges) { return wait(start(ranges)); }
  bool move(const capstan_range& range) { return move(std::span(&range, 1)); }

  /// Throws Broken when the function writes more than it was given room for.
  std::optional<capstan_offload_facts> facts();
  std::optional<capstan_offload_fault> fault(Ticket ticket);
  bool lend(void* memory, std::uint64_t bytes);
  void take_back(void* memory);
  /// Nothing where it has no such function.
  std::optional<std::string> stats();

  /// Throws Broken with this text and that of the last refusal unless `worked`.
  void demand(bool worked, const std::string& text) const;
  /// Files for writing that the component holds open, and that have a place on a disk.
  std::vector<int> files() const;

  void destroy() { component_.reset(); }

 private:
  template <class Call>
  bool ask(const std::string& what, Call&& call);

  std::set<int> files_before_;
  std::unique_ptr<ComponentUnderTest> component_;
  const capstan_offload* table_;
  std::string refusal_;
};

/// Bytes `displaced` from an address that is a multiple of `alignment`, between bytes that nobody may change.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::uint64_t bytes, std::uint64_t alignment = 1, std::uint64_t displaced = 0);
  GuardedBytes(const GuardedBytes&) = delete;
  char* data() { return data_; }
  std::uint64_t size() const { return bytes_; }
  std::string text() const { return {data_, bytes_}; }
  void fill(const std::string& bytes) { bytes.copy(data_, bytes_); }
  void fill(char byte) { std::fill_n(data_, bytes_, byte); }
  /// Throws Broken when a byte before or behind them has changed.
  void check(const std::string& what) const;

 private:
  static constexpr std::uint64_t kGuard = 4096;
  std::uint64_t bytes_;
  std::string room_;
  char* data_;
};

std::string random_bytes(std::mt19937_64& random, std::size_t count);

}  // namespace capstan::conformance
