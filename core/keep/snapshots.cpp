#include "core/keep/snapshots.hpp"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <exception>
#include <utility>

#include "core/log.hpp"

namespace capstan {
namespace {

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

double Snapshots::thread_seconds() { return seconds_of(CLOCK_THREAD_CPUTIME_ID); }

/// Seconds since the last one was begun, on the wall or of CPU time of this process: a process that waits for others
/// has less to spend.
double Snapshots::elapsed() const {
  return std::min(seconds_of(CLOCK_MONOTONIC) - last_wall_, seconds_of(CLOCK_PROCESS_CPUTIME_ID) - last_cpu_);
}

bool Snapshots::is_due(std::int64_t steps) const { return wanted_ && pace_.is_due(steps, elapsed()); }

void Snapshots::agree(bool due, bool sealed) {
  due_ = due;
  if (!std::exchange(unconfirmed_, false) || !sealed) return;
  folder_->keep(id_, step_);
  whole_ = true;
}

void Snapshots::remove_others(const SnapshotFolder& folder) {
  if (whole_ && std::exchange(others_remain_, false)) folder.remove_others(members_, /*superseded=*/true);
}

std::shared_ptr<const SnapshotLayout> Snapshots::layout_of(const std::vector<CheckpointTensor>& tensors) {
  if (!layout_ || !layout_->fits(tensors)) layout_ = std::make_shared<SnapshotLayout>(tensors);
  return layout_;
}

void Snapshots::start(SnapshotFolder& folder, std::int64_t step, Write write, bool now, double begun) {
  folder_ = &folder;
  step_ = step;
  id_ = folder.next_id();
  *written_ = {};
  under_way_ = unconfirmed_ = true;
  last_wall_ = seconds_of(CLOCK_MONOTONIC);
  last_cpu_ = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
  begun_cpu_ = thread_seconds() - begun;
  const auto work = [id = id_, written = written_, told = told_, write = std::move(write)] {
    try {
      written->cost = write(id);
      written->sealed = true;
      told->clear();
    } catch (const std::exception& error) {
      // Memory that is full stays so for many snapshots.
      if (std::exchange(*told, error.what()) == error.what()) return;
      log::warning(std::string("a snapshot is not made, and older ones stay: ") + error.what());
    }
  };
  if (now) return work();
  thread_.start(work);
}

bool Snapshots::finish() {
  if (!std::exchange(under_way_, false)) return !unconfirmed_ || written_->sealed;
  const double from = seconds_of(CLOCK_MONOTONIC);
  thread_.finish();
  const double cost = written_->cost + begun_cpu_ + seconds_of(CLOCK_MONOTONIC) - from;
  pace_.note_cost(cost);
  seconds_ += cost;
  if (written_->sealed) folder_->note_sealed(id_);
  return written_->sealed;
}

void Snapshots::forget() {
  finish();
  unconfirmed_ = false;
}

}  // namespace capstan
