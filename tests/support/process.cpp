#include "tests/support/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <stdexcept>

namespace capstan {
namespace {

struct Streams {
  int out_read = -1, out_write = -1, err_read = -1, err_write = -1;
};

Streams open_streams(bool terminal) {
  Streams streams;
  if (terminal) {
    const winsize size{24, 80, 0, 0};
    if (openpty(&streams.out_read, &streams.out_write, nullptr, nullptr, &size) != 0) {
      throw std::runtime_error("openpty failed");
    }
    fcntl(streams.out_read, F_SETFD, FD_CLOEXEC);
    return streams;
  }
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
  return {out[0], out[1], err[0], err[1]};
}

[[noreturn]] void become(const std::vector<std::string>& command, const ProcessOptions& options,
                         const Streams& streams) {
  dup2(streams.out_write, STDOUT_FILENO);
  dup2(options.terminal ? streams.out_write : streams.err_write, STDERR_FILENO);
  for (const std::string& setting : options.environment) putenv(const_cast<char*>(setting.c_str()));
  if (!options.folder.empty() && chdir(options.folder.c_str()) != 0) _exit(127);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  _exit(127);
}

}  // namespace

Process::Process(const std::vector<std::string>& command, const ProcessOptions& options) {
  const Streams streams = open_streams(options.terminal);
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ == 0) become(command, options, streams);
  close(streams.out_write);
  if (streams.err_write >= 0) close(streams.err_write);
  out_ = streams.out_read;
  err_ = streams.err_read;
}

Process::~Process() {
  if (!waited_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  for (const int descriptor : {out_, err_}) {
    if (descriptor >= 0) close(descriptor);
  }
}

bool Process::read_some(int patience) {
  pollfd watched[2] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
  if (out_ < 0 && err_ < 0) return false;
  const int ready = poll(watched, 2, patience);
  if (ready < 0 && errno != EINTR) throw std::runtime_error("poll failed");
  if (ready == 0) return false;
  for (auto [stream, text] : {std::pair{&out_, &result_.out}, std::pair{&err_, &result_.err}}) {
    const pollfd& events = watched[stream == &out_ ? 0 : 1];
    if (*stream < 0 || events.revents == 0) continue;
    char buffer[4096];
    const ssize_t bytes = read(*stream, buffer, sizeof buffer);
    if (bytes > 0) {
      text->append(buffer, static_cast<std::size_t>(bytes));
    } else {  // its end; of a terminal: EIO
      close(*stream);
      *stream = -1;
    }
  }
  return true;
}

bool Process::wait_for_output(const std::string& text) {
  const auto there = [&] {
    return result_.out.find(text) != std::string::npos || result_.err.find(text) != std::string::npos;
  };
  while (!there()) {
    if (!read_some(-1)) return false;
  }
  return true;
}

const ProcessResult& Process::drain() {
  while (read_some(0)) {
  }
  return result_;
}

void Process::send(int signal) const { kill(pid_, signal); }

ProcessResult Process::wait() {
  while (read_some(-1)) {
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  waited_ = true;
  if (WIFEXITED(status)) result_.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result_.signal = WTERMSIG(status);
  return result_;
}

}  // namespace capstan
