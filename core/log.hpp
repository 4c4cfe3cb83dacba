#pragma once

#include <string>
#include <string_view>

namespace capstan::log {

enum class Level { kDebug, kInfo, kWarning, kError };

/// Writes one line to standard error, "capstan: warning: ..." [any thread]. Lines below the level are dropped.
void write(Level level, std::string_view message);

/// Who speaks, in front of each line, where several processes write to one terminal: "rank 1"; nobody where it is
/// empty.
void set_speaker(const std::string& name);

void set_level(Level level);
Level level();

inline void debug(std::string_view message) { write(Level::kDebug, message); }
inline void info(std::string_view message) { write(Level::kInfo, message); }
inline void warning(std::string_view message) { write(Level::kWarning, message); }
inline void error(std::string_view message) { write(Level::kError, message); }

/// Called before each line is written, so that a progress bar can clear itself; null for none.
void set_before_line(void (*hook)());

}  // namespace capstan::log
