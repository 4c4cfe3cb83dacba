#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/elastic/launcher/address.hpp"
#include "core/elastic/launcher/secret.hpp"
#include "core/elastic/world.hpp"

namespace capstan {

/// The elastic launches of this user on this host, and who trains in each.
std::string elastic_status();
/// The one that is led by the launcher which is called at the first of these addresses, or by one that it knows. Throws
/// RuntimeFault.
std::string elastic_status_at(const std::vector<LauncherAddress>& rdzv, const RendezvousSecret& secret);

/// A process of a launch.
struct ShownProcess {
  std::int64_t rank = -1, process = 0;  // rank -1: it waits
  std::string host;                     // empty: this one
};
/// The same of one launch. `now`: seconds by the clock of the launch.
std::string elastic_status(const std::string& name, const World& world, const WorldFolder::Step& step, double now,
                           std::vector<ShownProcess> processes);

}  // namespace capstan
