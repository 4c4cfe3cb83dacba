#pragma once

#include <optional>
#include <utility>

#include "core/elastic/board.hpp"
#include "core/elastic/life_lock.hpp"
#include "core/elastic/own_folder.hpp"
#include "core/elastic/world.hpp"

namespace capstan {

/// The file that tells what a launch starts. It is written last: a folder without it is being made.
inline constexpr const char* kLaunchFile = "launch";
inline constexpr const char* kSnapshots = "snapshots";

/// What all copies of a WorldFolder have open.
struct WorldFolder::Shared {
  Shared(OwnFolder opened, bool create) : folder(std::move(opened)), life(folder, create) {}

  OwnFolder folder;
  LifeLock life;
  std::optional<Board> board;
};

}  // namespace capstan
