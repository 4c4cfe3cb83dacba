#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/comm/attendance.hpp"

namespace capstan {

/// Which start of a run's processes this is, where the texts that they share outlive starts: torchrun's agents keep the
/// texts and start processes anew, after a failure or where a host joins, and each agent counts by itself. Rank 0
/// numbers the starts. Every other rank asks with a word that no other process has, so that what an earlier start left
/// is no answer. One thread uses it.
class AgreedStart {
 public:
  struct Board : Attendance::Board {
    std::function<std::int64_t(const std::string& key)> count;  // adds 1, and returns the sum
  };

  AgreedStart(Board board, int rank, int size) : board_(std::move(board)), rank_(rank), size_(size) {}

  /// The number of this start. On rank 0 at once; the other ranks wait until rank 0 answers: nullopt after `patience`.
  std::optional<std::string> number(std::chrono::milliseconds patience);
  /// Rank 0, which has its number, tells whoever asks, until `arrived` is true for all other ranks, `patience` at most.
  void answer(const std::function<bool(int rank)>& arrived, std::chrono::milliseconds patience);

 private:
  Board board_;
  int rank_, size_;
  std::string number_;  // on rank 0, once it has counted
};

}  // namespace capstan
