#include "core/elastic/life_lock.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include "core/errors.hpp"

namespace capstan {
namespace {

constexpr long kRoles = 2;

/// A lock of an open file, which processes that are forked share; not of a process, which a child never has and which
/// falls as soon as the process closes the file anywhere.
struct flock lock_of(int type, long begin, long count) {
  struct flock lock {};
  lock.l_type = static_cast<short>(type);
  lock.l_whence = SEEK_SET;
  lock.l_start = begin;
  lock.l_len = count;
  return lock;
}

}  // namespace

/// All locks of this process, for the child of a fork.
struct ForkedLocks {
  std::mutex mutex;
  std::vector<LifeLock*> all;

  /// Never destroyed: a fork may come at any time.
  static ForkedLocks& get() {
    static ForkedLocks* const locks = [] {
      pthread_atfork([] { get().mutex.lock(); }, [] { get().mutex.unlock(); },
                     [] {
                       for (LifeLock* lock : get().all) close(std::exchange(lock->descriptor_, -1));
                       get().mutex.unlock();
                     });
      return new ForkedLocks;
    }();
    return *locks;
  }
};

LifeLock::LifeLock(const OwnFolder& folder, bool create) : path_(folder.path() / kLifeFile) {
  OpenFile file = folder.open(kLifeFile, O_RDWR | (create ? O_CREAT : 0));
  if (!file) {
    throw RuntimeFault("'" + path_.string() +
                       "': is missing: nobody can tell whether a process of its launch lives. A Capstan of an older "
                       "version has made the folder: remove it once that launch has ended.");
  }
  ForkedLocks& locks = ForkedLocks::get();
  const std::lock_guard guard(locks.mutex);
  locks.all.push_back(this);
  descriptor_ = file.release();
}

LifeLock::~LifeLock() {
  ForkedLocks& locks = ForkedLocks::get();
  const std::lock_guard guard(locks.mutex);
  std::erase(locks.all, this);
  if (descriptor_ >= 0) close(descriptor_);
}

bool LifeLock::set(int type, long begin, long count) {
  struct flock lock = lock_of(type, begin, count);
  if (fcntl(descriptor_, F_OFD_SETLK, &lock) == 0) return true;
  if (errno == EAGAIN || errno == EACCES) return false;
  throw RuntimeFault("'" + path_.string() + "': cannot be locked: " + std::generic_category().message(errno) + ".");
}

bool LifeLock::hold(Role role) { return set(role == Role::kLauncher ? F_WRLCK : F_RDLCK, static_cast<long>(role), 1); }
bool LifeLock::take_all() { return set(F_WRLCK, 0, kRoles); }
void LifeLock::release(Role role) { set(F_UNLCK, static_cast<long>(role), 1); }

bool LifeLock::is_held(Role role) const {
  struct flock lock = lock_of(F_WRLCK, static_cast<long>(role), 1);
  if (fcntl(descriptor_, F_OFD_GETLK, &lock) == 0) return lock.l_type != F_UNLCK;
  throw RuntimeFault("'" + path_.string() + "': its locks cannot be read: " + std::generic_category().message(errno) +
                     ".");
}

void LifeLock::touch() const { futimens(descriptor_, nullptr); }

double LifeLock::seconds_since_touch() const {
  struct stat facts {};
  return fstat(descriptor_, &facts) == 0 ? static_cast<double>(time(nullptr) - facts.st_mtim.tv_sec) : 0;
}

}  // namespace capstan
