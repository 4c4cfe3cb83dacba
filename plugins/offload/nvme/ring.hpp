#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace capstan::offload {

/// One read or write of the file, between memory and the offset `at`.
struct Request {
  void* memory;
  std::uint64_t bytes, at;
  std::uint64_t tag;  // comes back with the completion
  bool write;
};

struct Completion {
  std::uint64_t tag;
  std::int64_t result;  // bytes moved, or -errno
};

/// An engine that moves bytes between memory and one file. One call at a time, from any thread.
class Ring {
 public:
  virtual ~Ring() = default;  // when nothing is in flight

  virtual std::string_view name() const = 0;
  /// The most requests that may be in flight.
  virtual unsigned depth() const = 0;

  /// Begins them, in one submission. Returns how many it took, from the front; the others are to be given again. What
  /// fails comes back as a completion. Never more than the depth leaves room for.
  virtual std::size_t begin(std::span<const Request> requests) = 0;

  /// Appends what has come to an end. Blocks in the kernel until `at_least` completions are there, which must be in
  /// flight; 0: never blocks. Throws sdk::Error when the kernel refuses the engine itself.
  virtual void reap(std::size_t at_least, std::vector<Completion>& out) = 0;

  /// Registers memory that requests will use again and again. Returns 0 or an errno; ENOTSUP: the engine has no use
  /// for it.
  virtual int lend(void* /*memory*/, std::uint64_t /*bytes*/) { return ENOTSUP; }
  /// Nothing of that memory is in flight.
  virtual void take_back(void* /*memory*/) noexcept {}
};

/// Each throws sdk::Error with the reason when the kernel refuses the engine. The file stays open for the ring's life.
std::unique_ptr<Ring> make_uring(int file, unsigned depth);
std::unique_ptr<Ring> make_aio(int file, unsigned depth);
std::unique_ptr<Ring> make_threads(int file, unsigned depth, unsigned threads);

}  // namespace capstan::offload
