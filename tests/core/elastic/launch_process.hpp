#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "core/elastic/world.hpp"

namespace capstan::test {

/// A process that runs `work` and lives on until it is told to end, or until the object goes.
class LaunchProcess {
 public:
  /// `own_numbers`: in a PID namespace of its own, whose process 1 it is, as in a container. Root alone may do that.
  /// `work` returns a text for text().
  LaunchProcess(bool own_numbers, const std::function<std::string()>& work) {
    int said[2], end[2];
    EXPECT_EQ(pipe2(said, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(end, O_CLOEXEC), 0);
    said_ = said[0];
    end_ = end[1];
    process_ = fork();
    if (process_ == 0) {
      close(end[1]);
      run(own_numbers, said[1], end[0], work);
    }
    close(said[1]);
    close(end[0]);
    char part[256];
    for (ssize_t count = 0; (count = read(said_, part, sizeof part)) > 0;) {
      text_.append(part, static_cast<std::size_t>(count));
      if (text_.back() == '\n') break;
    }
    EXPECT_TRUE(text_.ends_with('\n')) << "the process has not come so far";
    if (!text_.empty()) text_.pop_back();
  }
  ~LaunchProcess() { end(); }
  LaunchProcess(const LaunchProcess&) = delete;

  const std::string& text() const { return text_; }
  /// The process ends, as by SIGKILL: it has no time for anything.
  void end() {
    if (process_ <= 0) return;
    // Not by closing: processes that were forked later hold the pipe as well.
    EXPECT_EQ(write(end_, "x", 1), 1);
    close(end_);
    waitpid(process_, nullptr, 0);
    close(said_);
    process_ = -1;
  }

 private:
  [[noreturn]] static void run(bool own_numbers, int said, int end, const std::function<std::string()>& work) {
    if (own_numbers) {
      if (unshare(CLONE_NEWPID) != 0) _exit(1);
      if (const pid_t first = fork(); first != 0) {
        waitpid(first, nullptr, 0);
        _exit(0);
      }
    }
    std::string text;
    try {
      text = work();
    } catch (const std::exception& error) {
      text = error.what();
    }
    text += '\n';
    if (write(said, text.data(), text.size()) != static_cast<ssize_t>(text.size())) _exit(1);
    char none = 0;
    (void)!read(end, &none, 1);
    _exit(0);
  }

  pid_t process_ = -1;
  int said_ = -1, end_ = -1;
  std::string text_;
};

inline constexpr const char* kNoPidNamespaces = "PID namespaces cannot be made here";

/// Whether `own_numbers` works here: root may have been denied it.
inline bool has_pid_namespaces() {
  const pid_t process = fork();
  if (process == 0) _exit(unshare(CLONE_NEWPID) == 0 ? 0 : 1);
  int status = 1;
  waitpid(process, &status, 0);
  return status == 0;
}

/// Makes the folder of a launch that has come to `step` in `world` and holds a snapshot. Returns its path.
inline std::string launch_at(const std::string& launch, std::int64_t step, const World& world,
                             const std::filesystem::path& place) {
  // As long as its process lives.
  static WorldFolder folder = WorldFolder::create(launch, place);
  folder.write(world);
  folder.tell_ready(3);
  folder.tell_step({world.generation, step, 1.5});
  std::ofstream(folder.snapshots() / "member-0.0") << "state";
  return folder.path().string();
}

/// The folder of a launch as launch_at() makes it, whose process is gone.
inline std::filesystem::path left_by_another(const std::string& launch, std::int64_t step, const World& world,
                                             const std::filesystem::path& place = WorldFolder::place_in_memory()) {
  LaunchProcess process(/*own_numbers=*/false, [&] { return launch_at(launch, step, world, place); });
  process.end();
  return process.text();
}

}  // namespace capstan::test
