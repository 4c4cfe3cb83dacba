#include "tracker_process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

extern char** environ;

namespace capstan::monitors {
namespace {

constexpr int kChannelInHelper = 3;

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  const bool whole = std::string_view(text).find_first_of(".e") == std::string_view::npos;
  return whole ? std::string(text) + ".0" : text;  // a float to Python, too
}

std::string python() {
  const char* chosen = std::getenv("CAPSTAN_PYTHON");
  return chosen != nullptr && *chosen != '\0' ? chosen : "python3";
}

/// The entries of a PYTHONPATH that mean the same in every working directory. An empty entry, which a stray colon
/// makes, means the working directory itself.
std::string absolute_entries(std::string_view path) {
  std::string kept;
  while (!path.empty()) {
    const std::string_view entry = path.substr(0, path.find(':'));
    if (entry.starts_with('/')) kept.append(kept.empty() ? "" : ":").append(entry);
    path.remove_prefix(std::min(entry.size() + 1, path.size()));
  }
  return kept;
}

/// This process's environment, but for what makes Python import from the working directory. PYTHONSAFEPATH reaches the
/// processes that a tracker's package starts, too; Python before 3.11 does not know it.
std::vector<std::string> helper_environment() {
  constexpr std::string_view kPath = "PYTHONPATH=", kSafe = "PYTHONSAFEPATH=";
  std::vector<std::string> variables{std::string(kSafe) + "1"};
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string_view variable = *one;
    if (variable.starts_with(kPath)) {
      variables.push_back(std::string(kPath) + absolute_entries(variable.substr(kPath.size())));
    } else if (!variable.starts_with(kSafe)) {
      variables.emplace_back(variable);
    }
  }
  return variables;
}

/// Pointers to texts as exec wants them, closed by a null.
std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

/// Starts the interpreter with our end of the channel as descriptor 3, in a session of its own.
pid_t spawn(const std::string& program, const std::string& script, int channel) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, 2, 1);  // what packages print is no output of the run
  ::posix_spawn_file_actions_adddup2(&actions, channel, kChannelInHelper);
  std::vector<std::string> words{program, "-c", script}, variables = helper_environment();
  pid_t pid = -1;
  const int error =
      ::posix_spawnp(&pid, program.c_str(), &actions, &attributes, pointers(words).data(), pointers(variables).data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    throw sdk::Error("cannot start '" + program + "': " + std::strerror(error) +
                     ". Install Python 3, or name one in the environment variable CAPSTAN_PYTHON.");
  }
  return pid;
}

/// What follows `kind` in an answer.
std::optional<std::string> answered(const std::string& line, const std::string& kind) {
  if (!line.starts_with(kind + " ")) return std::nullopt;
  return line.substr(kind.size() + 1);
}

}  // namespace

std::string json_rows(std::span<const sdk::Metric> metrics) {
  std::string out = "[";
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    const bool begins = i == 0 || metrics[i].x != metrics[i - 1].x;
    if (begins) out += (i == 0 ? "[" : "}],[") + std::to_string(metrics[i].x) + ",{";
    if (!begins) out += ",";
    out += json_string(metrics[i].tag) + ":" + number(metrics[i].value);
  }
  return out + (metrics.empty() ? "]" : "}]]");
}

std::string json_run(const sdk::Document& run_info) {
  std::string facts;
  const auto add = [&](const std::string& name, const std::string& value) {
    facts += (facts.empty() ? "" : ",") + json_string(name) + ":" + value;
  };
  for (std::size_t i = 0; i < run_info.size("hparams"); ++i) {
    const std::string at = "/hparams/" + std::to_string(i);
    const std::string value = run_info.text(at + "/1");  // numbers and booleans: as JSON
    add(run_info.text(at + "/0"), run_info.text(at + "/2") == "string" ? json_string(value) : value);
  }
  for (const char* name : {"world_size", "parameters"}) {
    if (run_info.has(name)) add(std::string("run.") + name, run_info.text(name));
  }
  for (const char* name : {"model", "device"}) {
    if (run_info.has(name)) add(std::string("run.") + name, json_string(run_info.text(name)));
  }
  const std::string config = run_info.has("config_text") ? run_info.text("config_text") : "";
  return "{\"facts\":{" + facts + "},\"config_text\":" + json_string(config) + "}";
}

TrackerProcess::TrackerProcess(std::string name, std::string_view script) : name_(std::move(name)) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw sdk::Error("cannot make a channel to the helper process: " + std::string(std::strerror(errno)) + ".");
  }
  try {
    // Not 3 itself: duplicating a descriptor onto itself would leave it closed in the helper.
    const int moved = ::fcntl(ends[1], F_DUPFD_CLOEXEC, kChannelInHelper + 1);
    ::close(std::exchange(ends[1], moved));
    pid_ = spawn(python(), std::string(script), ends[1]);
  } catch (...) {
    ::close(ends[0]);
    ::close(ends[1]);
    throw;
  }
  ::close(ends[1]);
  channel_ = ends[0];
  const std::string hello = read_line();
  if (answered(hello, "ok")) return;
  const auto problem = answered(hello, "error");
  const std::string ended = problem ? "" : how_it_ended();
  ::close(channel_);
  if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  throw sdk::Error(problem ? *problem : ended);
}

TrackerProcess::TrackerProcess(TrackerProcess&& other) noexcept
    : name_(std::move(other.name_)),
      pid_(std::exchange(other.pid_, -1)),
      channel_(std::exchange(other.channel_, -1)),
      pending_(std::move(other.pending_)) {}

TrackerProcess::~TrackerProcess() {
  if (channel_ >= 0) ::close(channel_);
  // With nobody to talk to, it closes the tracker and ends.
  if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
}

std::string TrackerProcess::how_it_ended() {
  int status = 0;
  if (pid_ <= 0 || ::waitpid(pid_, &status, 0) != pid_) return "the helper process of " + name_ + " ended.";
  pid_ = -1;
  const std::string how = WIFSIGNALED(status) ? "by signal " + std::to_string(WTERMSIG(status))
                                              : "with exit code " + std::to_string(WEXITSTATUS(status));
  return "the helper process of " + name_ + " (" + python() + ") ended " + how + ".";
}

std::string TrackerProcess::read_line() {
  for (;;) {
    const std::size_t end = pending_.find('\n');
    if (end != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return line;
    }
    char buffer[4096];
    const ssize_t count = ::recv(channel_, buffer, sizeof buffer, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return "";
    pending_.append(buffer, static_cast<std::size_t>(count));
  }
}

std::string TrackerProcess::ask(std::string_view request, std::string_view argument) {
  if (pid_ <= 0) throw sdk::Error("the helper process of " + name_ + " is no longer there.");
  std::string message = "[" + json_string(request) + ",";
  message.append(argument).append("]\n");
  std::string_view rest = message;
  while (!rest.empty()) {
    const ssize_t sent = ::send(channel_, rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) throw sdk::Error(how_it_ended());
    rest.remove_prefix(static_cast<std::size_t>(sent));
  }
  const std::string answer = read_line();
  if (auto ok = answered(answer, "ok")) return *ok;
  if (const auto problem = answered(answer, "error")) throw sdk::Error(*problem);
  throw sdk::Error(how_it_ended());
}

Tracker::Tracker(std::string name, std::string_view script) : name_(std::move(name)), script_(script) {
  // A plugin drives one tracker, and what an interpreter has does not change under a process.
  static std::mutex mutex;
  static std::string known;
  const std::lock_guard lock(mutex);
  if (known != python()) helper_.emplace(name_, script_);
  known = python();
}

std::string Tracker::open(const std::string& document) {
  if (!helper_) helper_.emplace(name_, script_);
  opened_ = true;
  return helper_->ask("open", document);
}

void Tracker::ask(std::string_view request, std::string_view argument) {
  if (!opened_) throw sdk::Error("is not open.");
  helper_->ask(request, argument);
}

void Tracker::close() {
  if (std::exchange(opened_, false)) helper_->ask("close");
}

}  // namespace capstan::monitors
