#pragma once

#include <cstdint>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/elastic/snapshot_folder.hpp"

namespace capstan {

/// The rank to which `rank` sends its copy on the k-th host after its own, k from 1: of the same place there, as far as
/// the hosts have equally many. `hosts`: the host of each rank.
int partner_of(int rank, int k, const std::vector<int>& hosts);
/// Copies that each rank sends where `partners` are asked for.
int partner_copies(std::int64_t partners, const std::vector<int>& hosts);

/// Sends this rank's sealed segment to one rank on each of the next `partners` hosts, as far as there are so many, and
/// keeps what others send as segments of their members in this rank's folder. When it returns, all ranks have
/// sealed all copies. `segment`: null where this rank has failed to make one; nothing is sent then. `members`: the
/// members of all ranks, in rank order. Called by all ranks, each by one thread whose communicator it is. Throws
/// RuntimeFault, on all ranks where one has no segment, or no room for a copy.
void copy_to_partners(SnapshotFolder& folder, const SnapshotSegment* segment, SnapshotId id, std::int64_t partners,
                      const std::vector<std::int64_t>& members, Communicator& ranks);

}  // namespace capstan
