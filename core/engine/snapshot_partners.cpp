#include "core/engine/snapshot_partners.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "core/comm/as_one.hpp"
#include "core/errors.hpp"

namespace capstan {
namespace {

constexpr const char* kCopyCaller = "begin_snapshot";

/// Bytes to be sent.
at::Tensor tensor_of(std::span<const std::byte> bytes) {
  return at::from_blob(const_cast<std::byte*>(bytes.data()), {static_cast<std::int64_t>(bytes.size())}, at::kByte);
}

/// Sends `out` to rank `to`, and receives `in` from rank `from`. Called by all ranks.
void shift(Communicator& ranks, const std::string& name, int to, const at::Tensor& out, int from,
           const at::Tensor& in) {
  const at::Tensor nothing = at::empty({0}, at::kByte);
  std::vector<at::Tensor> send(static_cast<std::size_t>(ranks.size()), nothing);
  std::vector<at::Tensor> receive(static_cast<std::size_t>(ranks.size()), nothing);
  send[static_cast<std::size_t>(to)] = out;
  receive[static_cast<std::size_t>(from)] = in;
  ranks.all_to_all(name, send, receive, kCopyCaller);
}

}  // namespace

void copy_to_partners(SnapshotFolder& folder, const SnapshotSegment* segment, SnapshotId id, std::int64_t partners,
                      const std::vector<std::int64_t>& members, Communicator& ranks) {
  const int size = ranks.size(), on_host = ranks.ranks_per_host();
  const int copies = static_cast<int>(std::min<std::int64_t>(partners, size / on_host - 1));
  const auto from = [&](int k) { return (ranks.rank() - k * on_host + size) % size; };
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
  std::vector<SnapshotSegment*> rooms;
  as_one(
      ranks, "snapshot, room for copies",
      [&] {
        for (int k = 1; k <= copies; ++k) {
          const std::uint64_t body = body_of(from(k));
          rooms.push_back(&folder.next_copy(member_of(from(k))));
          rooms.back()->reserve(kSnapshotHead + body, kSnapshotHead + body + body / 8);
        }
      },
      kCopyCaller);
  for (int k = 1; k <= copies; ++k) {
    const int to = (ranks.rank() + k * on_host) % size;
    SnapshotSegment& copy = *rooms[static_cast<std::size_t>(k - 1)];
    at::Tensor head = at::empty({static_cast<std::int64_t>(kSnapshotHead)}, at::kByte);
    shift(ranks, "snapshot, copy", to, tensor_of(sealed->body()), from(k), tensor_of(copy.open_copy(body_of(from(k)))));
    shift(ranks, "snapshot, head of the copy", to, tensor_of(sealed->head()), from(k), head);
    copy.seal_copy({static_cast<const std::byte*>(head.const_data_ptr()), kSnapshotHead});
    folder.note_sealed_copy(member_of(from(k)), id);
  }
  ranks.all_gather_text("snapshot, copies are sealed", "", kCopyCaller);
}

}  // namespace capstan
