#pragma once

#include <cstddef>
#include <functional>
#include <set>
#include <string>

namespace capstan::conformance {

/// What a process can be seen to hold, and where it stands, at the time of construction.
struct Footprint {
  Footprint();

  std::size_t threads, files;
  bool gpu;
  std::string folder;                 // the working directory
  std::set<std::string> environment;  // "NAME=value"
};

/// What is there after and was not before: "starts a thread", "changes the working directory to '/tmp'"; empty:
/// nothing.
std::string added(const Footprint& before, const Footprint& after);
/// The last two alone, which belong to the whole process however often they are changed.
std::string changed_process(const Footprint& before, const Footprint& after);

/// Waits until the process has so many threads or fewer, for the little time that a thread which has been joined is
/// still listed. False when it keeps more.
bool threads_end(std::size_t threads);

/// Bytes of malloc's that each of so many rounds of `work` keeps, the least of three tries: a leak shows every time;
/// allocator caches and what is made once at leisure show some of the times. A first try is not counted.
std::size_t bytes_kept(std::size_t rounds, const std::function<void()>& work);

/// Throws Broken when calls keep memory: "keeps 1048592 bytes of each call of rate."
void expect_no_leak(const std::string& function, const std::function<void()>& call, std::size_t calls = 100);

}  // namespace capstan::conformance
