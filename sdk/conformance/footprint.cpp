#include "sdk/conformance/footprint.hpp"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

#include "sdk/conformance/case.hpp"

namespace capstan::conformance {
namespace {

namespace fs = std::filesystem;

/// The smallest piece that malloc gives is 32 bytes with its header: less than one a round is no leak of every round.
constexpr std::size_t kLeastLeak = 24;
/// What LibTorch keeps of a few rounds, whoever calls it.
constexpr std::size_t kNoise = 1024;

std::size_t count_entries(const char* folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

bool has_gpu() {
  std::ifstream maps("/proc/self/maps");
  const std::string text{std::istreambuf_iterator<char>(maps), {}};
  return text.find("/dev/nvidia") != std::string::npos;
}

std::size_t bytes_in_use() {
  const struct mallinfo2 now = ::mallinfo2();
  return now.uordblks + now.hblkhd;  // in the arenas, and mapped for large pieces
}

}  // namespace

Footprint::Footprint()
    : threads(count_entries("/proc/self/task")),
      files(count_entries("/proc/self/fd")),
      gpu(has_gpu()),
      folder(fs::current_path().string()) {
  for (char** variable = environ; *variable != nullptr; ++variable) environment.insert(*variable);
}

std::string changed_process(const Footprint& before, const Footprint& after) {
  if (after.folder != before.folder) return "changes the working directory to '" + after.folder + "'";
  if (after.environment == before.environment) return "";
  std::vector<std::string> differs;
  std::set_symmetric_difference(before.environment.begin(), before.environment.end(), after.environment.begin(),
                                after.environment.end(), std::back_inserter(differs));
  const std::string& first = differs.front();
  return "changes the environment variable '" + first.substr(0, first.find('=')) + "'";
}

std::string added(const Footprint& before, const Footprint& after) {
  if (after.threads > before.threads) return "starts a thread";
  if (after.files > before.files) return "opens a file";
  if (after.gpu && !before.gpu) return "opens the GPU";
  return changed_process(before, after);
}

bool threads_end(std::size_t threads) {
  for (int patience = 1000; patience > 0; --patience) {
    if (count_entries("/proc/self/task") <= threads) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

std::size_t bytes_kept(std::size_t rounds, const std::function<void()>& work) {
  const auto repeat = [&] {
    for (std::size_t i = 0; i < rounds; ++i) work();
  };
  repeat();
  std::size_t least = SIZE_MAX;
  for (int attempt = 0; attempt < 3; ++attempt) {
    const std::size_t before = bytes_in_use();
    repeat();
    const std::size_t after = bytes_in_use();
    least = std::min(least, after > before ? after - before : 0);
  }
  return least < std::max(rounds * kLeastLeak, kNoise) ? 0 : least / rounds;
}

void expect_no_leak(const std::string& function, const std::function<void()>& call, std::size_t calls) {
  const std::size_t kept = bytes_kept(calls, call);
  expect(kept == 0, "keeps " + std::to_string(kept) + " bytes of each call of " + function + ".");
}

}  // namespace capstan::conformance
