#pragma once

#include <string>

#include "core/elastic/launcher/host_votes.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// A hash of each kind of line in the text of a launch (ElasticPlan::launched), by which launchers are compared: none
/// tells another one its command line or configuration. The folder may differ between hosts and has no hash. `key`: the
/// secret of the launch, without which nobody can try texts until one has that hash.
Json launch_hashes(const std::string& launched, const std::string& key);

/// The kinds of lines whose hashes are not equal: "the command line and the configuration differ". Empty where all are.
/// Throws std::exception where `theirs` is something else.
std::string differing_kinds(const Json& ours, const Json& theirs);

/// The host that a launcher says in its hello to be of; its number is -1 where it has none yet. Throws std::exception
/// where the text is of something else.
HostId host_id_of(const Json& hello);

}  // namespace capstan
