#include "tests/cli/capstan_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>

namespace capstan::test {
namespace {

constexpr int kPatienceMs = 60'000;

}  // namespace

Program::Program(const std::vector<std::string>& words, const std::function<void()>& in_child) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  std::vector<char*> arguments;
  for (const auto& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    if (in_child) in_child();
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  close(ends[1]);
  output_ = ends[0];
}

Program::~Program() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(output_);
}

bool Program::read_more(int timeout_ms) {
  pollfd ready{output_, POLLIN, 0};
  if (poll(&ready, 1, timeout_ms) <= 0) return false;
  char buffer[4096];
  const ssize_t count = read(output_, buffer, sizeof buffer);
  if (count <= 0) return false;
  text_.append(buffer, static_cast<std::size_t>(count));
  return true;
}

bool Program::wait_for(const std::string& text) {
  while (text_.find(text) == std::string::npos) {
    if (!read_more(kPatienceMs)) return false;
  }
  return true;
}

void Program::send(int signal) { kill(pid_, signal); }

ProgramEnd Program::wait() {
  while (read_more(kPatienceMs)) {
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  if (WIFSIGNALED(status)) return {-1, WTERMSIG(status), text_};
  return {WEXITSTATUS(status), 0, text_};
}

std::vector<std::string> capstan_words(const std::vector<std::string>& arguments) {
  std::vector<std::string> words{CAPSTAN_TEST_BUILD_DIR "/bin/capstan"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

ProgramEnd run_program(const std::vector<std::string>& words, const std::function<void()>& in_child) {
  return Program(words, in_child).wait();
}

}  // namespace capstan::test
