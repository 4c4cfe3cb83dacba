#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/elastic/board.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// Which processes of an elastic launch train together. The launcher decides, and numbers its decisions: generations.
struct World {
  std::int64_t generation = 0;        // counts from 1; 0: nothing was decided yet
  std::vector<std::int64_t> members;  // the number of each process, by rank; empty: all wait for the next generation
  std::int64_t size = 0;              // how many train together, or did last, or will first
  std::vector<std::int64_t> processes, waiting;  // process ids, for people to read: of the members, by rank, and of
                                                 // the others
  std::vector<std::int64_t> hosts;               // the number of each member's host, by rank
  std::string address;                           // of the host of rank 0, where the members meet
  std::string change;       // what ended the generation before, "rank 2 was killed by signal Killed"
  double since = 0;         // when the launcher learned of the change, by WorldFolder::seconds()
  double waited = 0;        // seconds since then with too few processes
  std::int64_t losses = 0;  // processes that the run has lost so far
  std::int64_t kept = 0;    // the step of the newest snapshot that the launcher knows of; 0: none
  bool elsewhere = false;   // hosts without a process that can train may have newer snapshots than those of the members
  std::string wish;         // not empty: members are to pause after a step, and why
  std::string end;          // not empty: all processes end, and why
  int end_code = 0;         // the exit code of processes that end for that reason
  std::int64_t saver = -1;  // the process that saves what the newest snapshot holds before it ends; -1: none. Where the
                            // members are on several hosts they all save together
  std::int64_t next = 0;    // the number of the process that is started next, on whatever host
  std::int64_t term = 0;    // of the decision on the hosts that the generation began under; 0: there is one host
  std::string run;          // tells this run from others, also where another launcher goes on with it
  std::string votes;        // what the launcher of this host has accepted, as a text; empty: there is one host

  /// Whether members are on several hosts.
  bool spans_hosts() const;
  /// The number of the generation among those of all launchers that have led: later terms come after earlier ones.
  std::int64_t order() const { return (term >> 20 << 32) + generation; }
  /// What launchers tell each other. of() throws std::exception where the text is of something else.
  Json json() const;
  static World of(const Json& json);
};

/// Seconds of a clock that all processes of this host share and that nobody sets.
double steady_seconds();

/// The folder that the launcher and the processes of an elastic launch share, in memory: which of them train together,
/// and snapshots of the training. Nobody but this user may enter it. Each file is read as a whole or not at all.
/// Functions throw RuntimeFault.
class WorldFolder {
 public:
  using Step = WorldStep;

  /// Opens a folder that create() has made. The process does not count as one of the launch.
  explicit WorldFolder(std::filesystem::path path);
  /// A folder whose launcher is this process, in `place`. `launch` says what it starts, as a text. Where a launcher of
  /// the same text is gone with all of its processes, which had no time to end their run, its folder is taken over,
  /// with its snapshots and its last world. Folders that other launches have left
  /// are removed once nobody can go on from them, or ten minutes after their last step. Locks tell who lives.
  static WorldFolder create(const std::string& launch, const std::filesystem::path& place);
  /// In place_in_memory(). Logs a warning where that is not /dev/shm.
  static WorldFolder create(const std::string& launch);
  /// Waits until all processes of launches of this text have ended whose launcher is gone, so that create() can take
  /// their folder over. Returns false where one of them outlives `patience`.
  static bool await_orphans(const std::string& launch, const std::filesystem::path& place,
                            std::chrono::milliseconds patience);
  /// /dev/shm, or the folder for temporary files where /dev/shm cannot be written to. Throws RuntimeFault where there
  /// is neither. `why_not`: filled with why it is not /dev/shm.
  static std::filesystem::path place_in_memory(std::string* why_not = nullptr);

  struct Listed {
    std::vector<std::filesystem::path> living;  // a process of the launch lives
    std::vector<std::filesystem::path> left;    // none does, and the run can go on in a launch of the same text
    std::vector<std::string> refused;           // a sentence for each folder that cannot be used
  };
  /// The folders with names of this user's launches.
  static Listed list(const std::filesystem::path& place = place_in_memory());
  /// The process number of the launcher that made a folder, by its name; 0 where none did. It is for people to read:
  /// in another PID namespace another process has that number.
  static int launcher_of(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return path_; }
  /// The file in which a generation's rank 0 tells its port.
  std::filesystem::path port_file(std::int64_t generation) const;
  std::filesystem::path snapshots() const { return path_ / "snapshots"; }

  /// This process counts as one of the launch until it ends. Throws where the launch has been taken over.
  void join() const;
  /// Whether the launcher of the folder lives, asked by another process.
  bool launcher_lives() const;

  /// The launcher writes, the processes read.
  void write(const World& world) const;
  World read() const;
  /// Counts what the launcher has written: what was read is up to date while the number is the same. A system call.
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
  /// connected: the launcher decides anew. `why` of the first that tells counts.
  void tell_broken(std::int64_t generation, const std::string& why) const;
  std::optional<std::string> why_broken(std::int64_t generation) const;
  /// The processes of a generation have no snapshot as new as the newest one, which is elsewhere.
  void tell_lacking(std::int64_t generation) const;
  bool is_lacking(std::int64_t generation) const;
  /// Writes a file that is not there yet; false where it is, which stays.
  bool offer(const std::string& name, const std::string& text) const;
  /// The content of a file; empty where there is none.
  std::string read(const std::string& name) const;

  /// Seconds of a clock that all processes of the launch share, on every host: steady_seconds() of the one that has
  /// begun it.
  double seconds() const;
  /// Sets by how much seconds() is ahead of steady_seconds() on this host. The launcher calls it before it starts a
  /// process.
  void set_clock(double ahead) const;

  void tell_step(const Step& step) const;
  Step last_step() const;

  /// Removes the folder with all that is in it.
  void remove() const noexcept;

 private:
  struct Shared;

  /// Opens the board.
  explicit WorldFolder(std::shared_ptr<Shared> shared);
  static std::shared_ptr<Shared> lock_if_left(const std::filesystem::path& path, const std::string* not_of);
  static std::shared_ptr<Shared> search_left(const std::string& launch, const std::filesystem::path& place);
  static WorldFolder furnish(const std::shared_ptr<Shared>& shared, const std::string& launch, bool taken_over);
  static bool is_left(const std::filesystem::path& path);
  /// Whether its run can go on in another launch of its text.
  bool can_go_on() const;
  /// Whether less than `seconds` have passed since the last step.
  bool is_younger_than(double seconds) const;
  void reserve_memory() const;
  void give_reserve_if_full() const;
  /// Removes what told of the processes that are gone.
  void forget_processes() const;

  std::filesystem::path path_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace capstan
