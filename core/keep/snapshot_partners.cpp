#include "core/keep/snapshot_partners.hpp"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/comm/as_one.hpp"
#include "core/errors.hpp"
#include "core/host_tensor.hpp"

namespace capstan {
namespace {

constexpr const char* kCopyCaller = "begin_snapshot";

/// Bytes to be sent.
at::Tensor tensor_of(std::span<const std::byte> bytes) {
  return at::from_blob(const_cast<std::byte*>(bytes.data()), {static_cast<std::int64_t>(bytes.size())}, at::kByte);
}

}  // namespace

int partner_of(int rank, int k, const std::vector<int>& hosts) {
  std::vector<int> order;                 // hosts, in the order of their first rank
  std::map<int, std::vector<int>> ranks;  // by host
  std::size_t own = 0, place = 0;
  for (int one = 0; one < static_cast<int>(hosts.size()); ++one) {
    const int host = hosts[static_cast<std::size_t>(one)];
    if (ranks[host].empty()) order.push_back(host);
    if (one == rank) {
      own = static_cast<std::size_t>(std::find(order.begin(), order.end(), host) - order.begin());
      place = ranks[host].size();
    }
    ranks[host].push_back(one);
  }
  const std::vector<int>& there = ranks[order[(own + static_cast<std::size_t>(k)) % order.size()]];
  return there[place % there.size()];
}

int partner_copies(std::int64_t partners, const std::vector<int>& hosts) {
  const auto others = static_cast<std::int64_t>(std::set<int>(hosts.begin(), hosts.end()).size()) - 1;
  return static_cast<int>(std::min(partners, others));
}

void copy_to_partners(SnapshotFolder& folder, const SnapshotSegment* segment, SnapshotId id, std::int64_t partners,
                      const std::vector<std::int64_t>& members, Communicator& ranks) {
  const int size = ranks.size();
  const int copies = partner_copies(partners, ranks.hosts());
  const auto sealed = segment ? SealedSegment::read(segment->path()) : std::nullopt;
  const auto bodies =
      ranks.all_gather_text("snapshot, sizes", sealed ? std::to_string(sealed->body().size()) : "", kCopyCaller);
  for (int rank = 0; rank < size; ++rank) {
    if (bodies[static_cast<std::size_t>(rank)].empty()) {
      throw RuntimeFault("rank " + std::to_string(rank) + " has none to send to its partner.");
    }
  }
  const auto body_of = [&](int rank) { return std::stoull(bodies[static_cast<std::size_t>(rank)]); };
  const auto member_of = [&](int rank) { return members[static_cast<std::size_t>(rank)]; };
  std::vector<std::map<int, SnapshotSegment*>> rooms(static_cast<std::size_t>(copies));  // by rank that sends
  as_one(
      ranks, "snapshot, room for copies",
      [&] {
        for (int k = 1; k <= copies; ++k) {
          for (int rank = 0; rank < size; ++rank) {
            if (partner_of(rank, k, ranks.hosts()) != ranks.rank()) continue;
            SnapshotSegment& room = folder.next_copy(member_of(rank));
            const std::uint64_t body = body_of(rank);
            room.reserve(kSnapshotHead + body, kSnapshotHead + body + body / 8);
            rooms[static_cast<std::size_t>(k - 1)][rank] = &room;
          }
        }
      },
      kCopyCaller);
  const at::Tensor nothing = host_empty({0}, at::kByte);
  const std::vector<at::Tensor> none(static_cast<std::size_t>(size), nothing);
  for (int k = 1; k <= copies; ++k) {
    const auto to = static_cast<std::size_t>(partner_of(ranks.rank(), k, ranks.hosts()));
    std::vector<at::Tensor> bodies_out = none, bodies_in = none, heads_out = none, heads_in = none;
    bodies_out[to] = tensor_of(sealed->body());
    heads_out[to] = tensor_of(sealed->head());
    const auto& coming = rooms[static_cast<std::size_t>(k - 1)];
    for (const auto& [rank, room] : coming) {
      bodies_in[static_cast<std::size_t>(rank)] = tensor_of(room->open_copy(body_of(rank)));
      heads_in[static_cast<std::size_t>(rank)] = host_empty({static_cast<std::int64_t>(kSnapshotHead)}, at::kByte);
    }
    ranks.all_to_all("snapshot, copy", bodies_out, bodies_in, kCopyCaller);
    ranks.all_to_all("snapshot, head of the copy", heads_out, heads_in, kCopyCaller);
    for (const auto& [rank, room] : coming) {
      const at::Tensor& head = heads_in[static_cast<std::size_t>(rank)];
      room->seal_copy({static_cast<const std::byte*>(head.const_data_ptr()), kSnapshotHead});
      folder.note_sealed_copy(member_of(rank), id);
    }
  }
  ranks.all_gather_text("snapshot, copies are sealed", "", kCopyCaller);
}

}  // namespace capstan
