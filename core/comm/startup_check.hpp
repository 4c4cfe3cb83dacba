#pragma once

#include <string>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// What all processes of a run must have in common.
struct RunIdentity {
  std::string libtorch;                 // version and build
  std::string model;                    // its description
  std::vector<std::string> parameters;  // "blocks.0.ln1.weight float32 [128]", in the model's order
  Json config = Json::object();         // every key with its value in force
};

/// What distinguishes two ranks' facts, as a sentence; empty when nothing does.
std::string difference(const RunIdentity& facts, int rank, const RunIdentity& others, int other_rank);

/// Throws RuntimeFault, the same on all ranks, when they are not about to do the same. A digest is exchanged; the facts
/// themselves only when digests differ.
void check_same_run(Communicator& communicator, const RunIdentity& facts);

}  // namespace capstan
