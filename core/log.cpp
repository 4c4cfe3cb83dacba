#include "core/log.hpp"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>

namespace capstan::log {
namespace {

std::atomic<void (*)()> before_line{nullptr};

spdlog::logger& logger() {
  // Never destroyed: plugins may log while the process ends.
  static spdlog::logger& instance = *[] {
    auto made = new spdlog::logger("capstan", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("capstan: %v");
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return instance;
}

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

const char* prefix(Level level) {
  switch (level) {
    case Level::kDebug:
      return "debug: ";
    case Level::kInfo:
      return "";
    case Level::kWarning:
      return "warning: ";
    case Level::kError:
      return "error: ";
  }
  return "";
}

}  // namespace

void write(Level level, std::string_view message) {
  if (!logger().should_log(to_spdlog(level))) {
    return;
  }
  if (auto hook = before_line.load()) {
    hook();
  }
  logger().log(to_spdlog(level), "{}{}", prefix(level), message);
}

void set_speaker(const std::string& name) {
  logger().set_pattern(name.empty() ? "capstan: %v" : "capstan: [" + name + "] %v");
}

void set_level(Level level) { logger().set_level(to_spdlog(level)); }

Level level() {
  switch (logger().level()) {
    case spdlog::level::trace:
    case spdlog::level::debug:
      return Level::kDebug;
    case spdlog::level::info:
      return Level::kInfo;
    case spdlog::level::warn:
      return Level::kWarning;
    default:
      return Level::kError;
  }
}

void set_before_line(void (*hook)()) { before_line.store(hook); }

}  // namespace capstan::log
