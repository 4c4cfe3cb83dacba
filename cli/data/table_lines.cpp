#include "cli/data/table_lines.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "cli/data/arrow_folder.hpp"
#include "core/errors.hpp"
#include "core/process/child.hpp"

namespace capstan::cli {
namespace {

/// The program capstan-arrow with the lines that it prints; it ends with this object. cli/arrow/capstan_arrow.cpp tells
/// what the lines mean.
class ArrowProgram {
 public:
  explicit ArrowProgram(std::vector<std::string> arguments) {
    const std::string program = arrow_program(), libraries = arrow_lib_dir();
    arguments.insert(arguments.begin(), program);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw RuntimeFault("no pipe: " + std::string(std::strerror(errno)) + ".");
    lines_.reset(::fdopen(ends[0], "r"));
    if (!lines_) {
      const std::string reason = std::strerror(errno);
      ::close(ends[0]);
      ::close(ends[1]);
      throw RuntimeFault("no stream of a pipe: " + reason + ".");
    }
    sigset_t none;
    sigemptyset(&none);
    ChildCommand command{.words = std::move(arguments), .mask = none, .caller = "data: "};
    command.prepare = [&] {
      ::dup2(ends[1], STDOUT_FILENO);
      ::setenv("LD_LIBRARY_PATH", libraries.c_str(), 1);
    };
    try {
      process_ = start_child(command);
    } catch (...) {
      ::close(ends[1]);
      throw;
    }
    ::close(ends[1]);
  }
  ~ArrowProgram() {
    lines_.reset();
    std::free(line_);
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    end();
  }
  ArrowProgram(const ArrowProgram&) = delete;

  /// The next line, without its end; false behind the last.
  bool next(std::string& line) {
    const ssize_t length = ::getline(&line_, &room_, lines_.get());
    if (length <= 0 || line_[length - 1] != '\n') return false;
    line.assign(line_, static_cast<std::size_t>(length - 1));
    return true;
  }
  /// Waits for the end of the process, and tells how it was.
  std::string end() {
    int status = 0;
    while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) {
    }
    process_ = -1;
    return how_it_ended(status);
  }

 private:
  struct Closing {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  pid_t process_ = -1;
  std::unique_ptr<std::FILE, Closing> lines_;
  char* line_ = nullptr;
  std::size_t room_ = 0;
};

}  // namespace

void read_table_lines(const std::string& path, const std::vector<std::string>& columns,
                      const std::function<void(std::uint64_t bytes)>& on_progress,
                      const std::function<void(const std::string& line)>& take) {
  if (::access(path.c_str(), R_OK) != 0) {
    throw RuntimeFault(path + ": cannot be read: " + std::strerror(errno) + ".");
  }
  std::vector<std::string> arguments = {path};
  arguments.insert(arguments.end(), columns.begin(), columns.end());
  std::unique_ptr<ArrowProgram> program;
  try {
    program = std::make_unique<ArrowProgram>(std::move(arguments));
  } catch (const RuntimeFault& error) {
    throw RuntimeFault(path + ": " + error.what());
  }
  std::uint64_t done = 0;
  for (std::string line; program->next(line);) {
    if (line == ".") return;
    if (line.starts_with('!')) throw RuntimeFault(path + ": " + line.substr(1));
    if (!line.starts_with('@')) {
      take(line);
      continue;
    }
    std::uint64_t position = done;
    std::from_chars(line.data() + 1, line.data() + line.size(), position);
    on_progress(position - done);
    done = position;
  }
  // An interrupt of the terminal ends both processes.
  on_progress(0);
  throw RuntimeFault(path + ": cannot be read: capstan-arrow " + program->end() + ". A damaged file can cause that.");
}

}  // namespace capstan::cli
