#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "core/elastic/own_folder.hpp"

namespace capstan {

inline constexpr const char* kBoardFile = "board";

/// How far the training of a launch has come: steps done, and WorldFolder::seconds() at the last one's end.
struct WorldStep {
  std::int64_t generation = 0, step = 0;
  double at = 0;
  std::int64_t kept = 0;  // the step of the newest snapshot that was known to be whole by then; 0: none
  bool operator==(const WorldStep&) const = default;
};

/// The numbers of a launch that change often, in the file `board` of its folder. Reading or writing one costs a system
/// call, and allocates nothing. A file that is cut short is named, and does not end the process by SIGBUS: memory of
/// the file is the address of a futex and is not read. Functions throw RuntimeFault. [any thread]
class Board {
 public:
  /// Creates the file: its memory is allocated, so that the board never finds it full.
  static void create(const OwnFolder& folder);
  explicit Board(const OwnFolder& folder);

  std::uint32_t revision() const;
  /// Counts on, and wakes those who wait. One process at a time calls it.
  void count_revision() const;
  /// Waits until the revision is another one, `patience` at most.
  void await_other_than(std::uint32_t revision, std::chrono::milliseconds patience) const;

  WorldStep step() const;
  void set_step(const WorldStep& step) const;
  double ahead() const;
  void set_ahead(double seconds) const;

 private:
  template <typename Record>
  Record load() const;
  template <typename Record>
  void store(const Record& record) const;
  [[noreturn]] void fail(const char* problem) const;

  std::filesystem::path path_;
  OpenFile file_;
  std::shared_ptr<void> page_;
};

}  // namespace capstan
