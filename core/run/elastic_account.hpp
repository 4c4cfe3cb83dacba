#pragma once

#include <cstdint>
#include <string>

#include "core/text/json.hpp"

namespace capstan {

/// What an elastic run has lost so far, by cause, in seconds of one clock: WorldFolder::seconds(). It travels with the
/// snapshots: what was done since a snapshot is lost when the run goes on from it.
struct ElasticAccount {
  double begun = 0;       // when the first step began
  double repeated = 0;    // steps that were done again
  double regrouping = 0;  // from a loss to the next step
  double waiting = 0;     // for enough processes

  /// As it is at a snapshot that is taken now.
  Json json(double now) const;
  /// The account of a run that goes on now from the snapshot that holds `saved`. The launcher learned at `since` that
  /// it had to, and had too few processes for `waited` seconds.
  static ElasticAccount go_on(const Json& saved, double since, double waited, double now);

  double lost() const { return repeated + regrouping + waiting; }
  /// The share of the time that was not lost.
  double goodput(double now) const;
  /// "12 losses, 7.9 s lost, goodput 98.1 %".
  std::string text(std::int64_t losses, double now) const;
};

}  // namespace capstan
