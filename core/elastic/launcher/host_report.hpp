#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/comm/port_file.hpp"
#include "core/elastic/world.hpp"

namespace capstan {

/// The member `key` of a message. Throws std::exception where it is not a whole number from 0 to `most`: counting on
/// from it stays far from the end of 64 bits.
std::int64_t count_in(const Json& json, const char* key, std::int64_t most = 1'000'000'000);

/// The report that a launcher sends about its host.
struct HostReport {
  struct Process {
    std::int64_t number = 0, process = 0;  // that of the launch, and that of the host's system
    bool able = false;                     // it can be a member of a world
    bool leaves = false;                   // it has ended its last step, and ends
    std::int64_t paused = 0;               // the last generation of which it has ended the last step
    bool operator==(const Process&) const = default;
  };
  std::vector<Process> processes;
  std::int64_t wanted = 0, spares = 0;  // processes that are to train, and to wait, on this host
  std::int64_t broken = 0;   // the last generation whose processes lost a connection, or did not find together ...
  std::string why_broken;    // ... as one of them tells
  std::int64_t lacks = 0;    // the last generation whose members found no state as new as what other hosts may have
  std::int64_t meeting = 0;  // the last generation whose rank 0 is on this host, once it listens ...
  PortEntry place;           // ... there
  WorldFolder::Step step;    // how far the training has come, where rank 0 is on this host
  std::int64_t written = 0;  // what its processes have written, as written_by() counts it, once the run ends

  /// Throws std::exception where the text is of something else.
  static HostReport of(const Json& json);
  Json json() const;
  bool operator==(const HostReport& other) const = default;
};

}  // namespace capstan
