#include "plugins/accelerators/cuda/nccl_communicator.hpp"

#include <chrono>
#include <string>
#include <thread>

#include "capstan/sdk/component.hpp"

namespace capstan::accelerators {
namespace {

using Clock = std::chrono::steady_clock;

/// Most exchanges are shorter than a sleep.
constexpr auto kSpinning = std::chrono::milliseconds(1);
constexpr auto kSleep = std::chrono::microseconds(50);
/// The others leave at the same time, or are gone.
constexpr auto kPatience = std::chrono::seconds(2);

bool is_fault(int result) { return result != NcclApi::kSuccess && result != NcclApi::kInProgress; }

}  // namespace

NcclCommunicator::NcclCommunicator(const NcclApi& api, const NcclId& id, int rank, int size, const Stop& given_up)
    : api_(api) {
  NcclConfig config;
  try {
    check(api_.init(&raw_, size, id, rank, &config));
    if (!wait_until([&] { return settled(); }, given_up)) {
      throw sdk::Error("NCCL: not all processes of the group have come.");
    }
  } catch (...) {
    abort();
    throw;
  }
}

NcclCommunicator::~NcclCommunicator() {
  if (raw_ == nullptr) return;
  try {
    const auto until = Clock::now() + kPatience;
    check(api_.finalize(raw_));
    if (wait_until([&] { return settled(); }, [&] { return Clock::now() > until; })) {
      api_.destroy(raw_);
      return;
    }
  } catch (const sdk::Error&) {
    // The process that it connects to is gone; there is nothing left to tell.
  }
  abort();
}

void NcclCommunicator::start(const std::vector<Piece>& send, const std::vector<Piece>& receive, void* stream) {
  if (raw_ == nullptr) throw sdk::Error("NCCL: the link was aborted.");
  int failed = api_.group_start();
  const auto add = [&](auto function, const Piece& piece) {
    if (is_fault(failed)) return;
    failed = function(piece.memory, piece.bytes, NcclApi::kUint8, piece.peer, raw_, stream);
  };
  for (const Piece& piece : receive) add(api_.receive, piece);
  for (const Piece& piece : send) add(api_.send, piece);
  // Whatever failed, or the thread's next group would belong to this one.
  const int ended = api_.group_end();
  try {
    check(failed);
    check(ended);
  } catch (...) {
    abort();
    throw;
  }
}

bool NcclCommunicator::wait(const std::function<void()>& queued, const std::function<bool()>& done, const Stop& stop) {
  if (raw_ == nullptr) return false;
  try {
    if (wait_until([&] { return settled(); }, stop)) {
      queued();
      if (wait_until([&] { return done(); }, stop)) return true;
    }
  } catch (...) {
    abort();
    throw;
  }
  abort();
  return false;
}

bool NcclCommunicator::wait_until(const std::function<bool()>& reached, const Stop& stop) {
  const auto begun = Clock::now();
  while (!reached()) {
    if (stop()) return false;
    if (Clock::now() - begun < kSpinning) continue;
    settled();  // throws where the connection broke
    std::this_thread::sleep_for(kSleep);
  }
  return true;
}

bool NcclCommunicator::settled() const {
  int error = NcclApi::kSuccess;
  check(api_.async_error(raw_, &error));
  check(error);
  return error != NcclApi::kInProgress;
}

void NcclCommunicator::check(int result) const {
  if (!is_fault(result)) return;
  const char* detail = api_.last_error(raw_);
  throw sdk::Error(std::string("NCCL: ") + api_.error_text(result) +
                   (detail && *detail ? std::string(" (") + detail + ")" : ""));
}

void NcclCommunicator::abort() noexcept {
  if (raw_ != nullptr) api_.abort(raw_);
  raw_ = nullptr;
}

}  // namespace capstan::accelerators
