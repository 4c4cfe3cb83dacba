#pragma once

#include "core/elastic/own_folder.hpp"

namespace capstan {

/// The file that is locked.
inline constexpr const char* kLifeFile = "alive";

/// Which processes of a launch live, told by locks on the file `alive` of the folder that they share: not by process
/// numbers, which mean nothing in another PID namespace and return in a restarted container. A lock holds for all
/// processes that can open the file, and falls with the last process that has it. A process that is forked off drops
/// its copies at once, so that a child that lives longer than its parent does not count as the parent. [one thread]
class LifeLock {
 public:
  enum class Role { kLauncher = 0, kMember = 1 };

  /// Opens the file. `create`: unless it exists, which is otherwise a RuntimeFault.
  LifeLock(const OwnFolder& folder, bool create);
  ~LifeLock();
  LifeLock(const LifeLock&) = delete;

  /// This process counts as alive from here on. False where another one is the launcher, or has taken everything.
  bool hold(Role role);
  /// Takes the locks of both roles. False where any other process holds one.
  bool take_all();
  void release(Role role);
  /// Whether a process has that role, beside the holder of this object.
  bool is_held(Role role) const;
  /// Sets the file's time of change to now.
  void touch() const;
  /// Seconds since then.
  double seconds_since_touch() const;

 private:
  friend struct ForkedLocks;
  bool set(int type, long begin, long count);

  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace capstan
