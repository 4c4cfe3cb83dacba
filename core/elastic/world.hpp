#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/text/json.hpp"

namespace capstan {

/// Which processes of an elastic launch train together. The launcher decides, and numbers its decisions: generations.
struct World {
  std::int64_t generation = 0;        // counts from 1; 0: nothing was decided yet
  std::vector<std::int64_t> members;  // the number of each process, by rank; empty: all wait for the next generation
  std::int64_t size = 0;              // how many train together, or did last, or will first
  std::vector<std::int64_t> processes, waiting;  // process ids: of the members, by rank, and of the others
  std::vector<std::int64_t> hosts;               // the number of each member's host, by rank
  std::string address;                           // of the host of rank 0, where the members meet
  std::string change;       // what ended the generation before, "rank 2 was killed by signal Killed"
  double since = 0;         // when the launcher learned of the change, by WorldFolder::seconds()
  double waited = 0;        // seconds since then with too few processes
  std::int64_t losses = 0;  // processes that the run has lost so far
  std::string wish;         // not empty: members are to pause after a step, and why
  std::string end;          // not empty: all processes end, and why
  int end_code = 0;         // the exit code of processes that end for that reason
  std::int64_t saver = -1;  // the process that saves what the newest snapshot holds before it ends; -1: none. Where the
                            // members are on several hosts they all save together
  std::int64_t next = 0;    // the number of the process that is started next, on whatever host

  /// Whether members are on several hosts.
  bool spans_hosts() const;
  /// What launchers tell each other. of() throws std::exception where the text is of something else.
  Json json() const;
  static World of(const Json& json);
};

/// Seconds of a clock that all processes of this host share and that nobody sets.
double steady_seconds();

/// The folder that the launcher and the processes of an elastic launch share, in memory: which of them train together,
/// and snapshots of the training. Nobody but this user may enter it. What one process writes others read whole or not
/// at all. Functions throw RuntimeFault.
class WorldFolder {
 public:
  /// Opens a folder that create() has made.
  explicit WorldFolder(std::filesystem::path path);
  /// A folder of this process, in `place`. `launch` says what it starts, as a text. Where a
  /// launcher of the same text is gone with all of its processes, which had no time to end their run, its folder is
  /// taken over, with its snapshots and its last world; others that launchers and their processes have left are
  /// removed.
  static WorldFolder create(const std::string& launch, const std::filesystem::path& place = place_in_memory());
  /// /dev/shm where it can be written to.
  static std::filesystem::path place_in_memory();
  /// The folders of launchers of this user that live.
  static std::vector<std::filesystem::path> living();
  /// The process that made a folder, by its name; 0 where none did.
  static int launcher_of(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return path_; }
  /// Where a generation's rank 0 tells its port.
  std::filesystem::path port_file(std::int64_t generation) const;
  std::filesystem::path snapshots() const { return path_ / "snapshots"; }

  /// The launcher writes, the processes read.
  void write(const World& world) const;
  World read() const;
  /// Counts what the launcher has written: what was read is up to date while the number is the same. Costs nothing.
  std::uint32_t revision() const;
  /// Waits until the revision is another one, `patience` at most.
  void await_other_than(std::uint32_t revision, std::chrono::milliseconds patience) const;

  /// A process waits for a generation that it belongs to.
  void tell_ready(std::int64_t member) const;
  bool is_ready(std::int64_t member) const;
  /// A member has ended its last step in a generation and waits for the next. `leaves`: it will not be part of that.
  void tell_paused(std::int64_t generation, std::int64_t member, bool leaves) const;
  bool has_paused(std::int64_t generation, std::int64_t member) const;
  bool leaves(std::int64_t member) const;
  /// The processes of a generation cannot train together, for instance because one has ended before they were
  /// connected: the launcher decides anew.
  void tell_broken(std::int64_t generation) const;
  bool is_broken(std::int64_t generation) const;
  /// Writes a file that is not there yet; false where it is, which stays.
  bool offer(const std::string& name, const std::string& text) const;
  std::string read(const std::string& name) const;
  /// Counts what processes have told. Costs nothing.
  std::uint32_t told() const;

  /// Seconds of a clock that all processes of the launch share, on every host: steady_seconds() of the one that has
  /// begun it.
  double seconds() const;
  /// What seconds() is ahead of steady_seconds() on this host. The launcher calls it before it starts a process.
  void set_clock(double ahead) const;

  /// How far the training has come: steps done, and seconds() at the last one's end.
  struct Step {
    std::int64_t generation = 0, step = 0;
    double at = 0;
    bool operator==(const Step&) const = default;
  };
  void tell_step(const Step& step) const;
  Step last_step() const;

  /// Removes the folder with all that is in it.
  void remove() const noexcept;

 private:
  struct Board;

  /// Whether no process of a launch lives any more.
  bool is_left() const;
  /// Whether its run can go on in a launch of that text.
  bool goes_on_in(const std::string& launch) const;
  void reserve_memory() const;
  void give_reserve_if_full() const;
  /// Removes what told of the processes that are gone.
  void forget_processes() const;
  void tell(const std::string& name) const;
  bool was_told(const std::string& name) const;

  std::filesystem::path path_;
  std::shared_ptr<Board> board_;
};

}  // namespace capstan
