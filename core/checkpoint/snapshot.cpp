#include "core/checkpoint/snapshot.hpp"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/checkpoint/copy_past_caches.hpp"
#include "core/checkpoint/dtypes.hpp"
#include "core/errors.hpp"
#include "core/host_tensor.hpp"
#include "core/xxh3.hpp"

namespace capstan {
namespace {

constexpr std::uint64_t kTensorAlignment = 64;
constexpr std::uint64_t kInCaches = 8 << 20;      // bytes of a snapshot that a core's share of the caches may hold
constexpr std::size_t kCopiedAtOnce = 16 << 10;   // half of a core's first-level cache
constexpr std::int64_t kStoredAtOnce = 16 << 20;  // bytes of a tensor that is not in memory
constexpr const char* kSegmentName = "segment";   // an index names a file; here it is the segment it stands in

IndexedTensor placed(const CheckpointTensor& tensor, std::uint64_t begin) {
  if (!safetensors_dtype(tensor.values.scalar_type())) {
    throw RuntimeFault("snapshot: " + tensor.state + " of '" + tensor.parameter + "' is of type " +
                       c10::toString(tensor.values.scalar_type()) + ", which checkpoints cannot hold.");
  }
  const std::uint64_t bytes = static_cast<std::uint64_t>(tensor.values.numel()) * tensor.values.element_size();
  return {tensor.parameter,      tensor.state, tensor.values.scalar_type(),           tensor.shape, tensor.offset,
          tensor.values.numel(), kSegmentName, tensor.state + "/" + tensor.parameter, begin,        begin + bytes};
}

std::string name_of(const IndexedTensor& place) { return place.state + " of '" + place.parameter + "'"; }

/// Copies `count` bytes and adds them to `digest`: each piece while the cache holds it.
void copy_and_add(Xxh3& digest, std::byte* to, const std::byte* from, std::size_t count, CopyPath path) {
  for (std::size_t at = 0; at < count; at += kCopiedAtOnce) {
    const std::size_t now = std::min(kCopiedAtOnce, count - at);
    digest.update(from + at, now);
    if (path == CopyPath::kPastCaches) {
      copy_past_caches(to + at, from + at, now);
    } else {
      std::memcpy(to + at, from + at, now);
    }
  }
  flush_copies();
}

/// Copies a tensor's values. Returns their checksum.
std::uint64_t copy_values(std::byte* to, const CheckpointTensor& tensor, CopyPath path) {
  if (!tensor.read) {
    const at::Tensor values = tensor.values.cpu().contiguous();
    return copy_hashed(to, static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes(), path);
  }
  Xxh3 digest;
  const auto element = static_cast<std::int64_t>(tensor.values.element_size());
  const std::int64_t numel = tensor.values.numel(), at_once = kStoredAtOnce / element;
  for (std::int64_t from = 0; from < numel; from += at_once) {
    const at::Tensor piece = tensor.read(from, std::min(at_once, numel - from));
    copy_and_add(digest, to + from * element, static_cast<const std::byte*>(piece.const_data_ptr()), piece.nbytes(),
                 path);
  }
  return digest.digest();
}

/// LibTorch makes no tensor of constant memory: the cast is safe because the storage gives the memory to readers only.
at::Tensor tensor_in(const SealedSegment& segment, const IndexedTensor& place) {
  if (place.numel == 0) return host_empty({0}, place.type);
  auto* begin = const_cast<std::byte*>(segment.data().data() + place.begin);
  at::Tensor tensor = at::from_blob(
      begin, {place.numel}, [memory = segment.memory()](void*) {}, at::TensorOptions().dtype(place.type));
  tensor.storage().unsafeGetStorageImpl()->set_throw_on_mutable_data_ptr();
  return tensor;
}

}  // namespace

CopyPath copy_path(std::uint64_t snapshot_bytes) {
  return snapshot_bytes > kInCaches ? CopyPath::kPastCaches : CopyPath::kThroughCaches;
}

std::uint64_t copy_hashed(std::byte* to, const std::byte* from, std::size_t count, CopyPath path) {
  Xxh3 digest;
  copy_and_add(digest, to, from, count, path);
  return digest.digest();
}

SnapshotLayout::SnapshotLayout(const std::vector<CheckpointTensor>& tensors) {
  CheckpointIndex index;
  for (const CheckpointTensor& tensor : tensors) {
    places_.push_back(placed(tensor, bytes_));
    bytes_ = (places_.back().end + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
  }
  index.tensors = places_;
  index_ = index_text(index);
}

bool SnapshotLayout::fits(const std::vector<CheckpointTensor>& tensors) const {
  return std::equal(places_.begin(), places_.end(), tensors.begin(), tensors.end(),
                    [](const IndexedTensor& place, const CheckpointTensor& tensor) {
                      return place.numel == tensor.values.numel() && place.type == tensor.values.scalar_type() &&
                             place.offset == tensor.offset && place.shape == tensor.shape &&
                             place.parameter == tensor.parameter && place.state == tensor.state;
                    });
}

SnapshotSizes SnapshotLayout::sizes(std::uint64_t state_bytes) const {
  return {index_.size(), places_.size() * sizeof(std::uint64_t), bytes_, state_bytes};
}

void write_snapshot(SnapshotSegment& segment, const SnapshotLayout& layout,
                    const std::vector<CheckpointTensor>& tensors, const std::string& state,
                    const SnapshotFacts& facts) {
  segment.open(layout.sizes(state.size()));
  std::copy_n(reinterpret_cast<const std::byte*>(layout.index().data()), layout.index().size(), segment.index().data());
  std::byte* digests = segment.digests().data();
  const CopyPath path = copy_path(segment.data().size());
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    const std::uint64_t digest = copy_values(segment.data().data() + layout.begin(k), tensors[k], path);
    std::memcpy(digests + k * sizeof digest, &digest, sizeof digest);
  }
  std::copy_n(reinterpret_cast<const std::byte*>(state.data()), state.size(), segment.state().data());
  segment.seal(facts);
}

std::vector<IndexedTensor> snapshot_places(std::string_view index, std::uint64_t data_bytes, const std::string& where) {
  std::vector<IndexedTensor> places = parse_index_part(index, where + ", index").tensors;
  for (const IndexedTensor& place : places) {
    const auto bytes = static_cast<std::uint64_t>(place.numel) * c10::elementSize(place.type);
    if (place.begin % kTensorAlignment == 0 && place.begin <= place.end && place.end - place.begin == bytes &&
        place.end <= data_bytes) {
      continue;
    }
    throw RuntimeFault(where + ": " + name_of(place) + " is not within its data.");
  }
  return places;
}

std::vector<CheckpointTensor> read_snapshot(const SealedSegment& segment,
                                            const std::function<bool(const CheckpointTensor&)>& takes) {
  const std::string where = "snapshot '" + segment.path().string() + "'";
  const std::vector<IndexedTensor> places = snapshot_places(segment.index(), segment.data().size(), where);
  if (places.size() != segment.digest_count()) {
    throw RuntimeFault(where + ": its index and its checksums do not belong together.");
  }
  std::vector<CheckpointTensor> tensors;
  for (std::size_t k = 0; k < places.size(); ++k) {
    const IndexedTensor& place = places[k];
    tensors.push_back({place.parameter, place.state, place.shape, place.offset, tensor_in(segment, place)});
    if (takes(tensors.back()) &&
        xxh3(segment.data().data() + place.begin, place.end - place.begin) != segment.digest(k)) {
      throw RuntimeFault(where + ": " + name_of(place) + " is damaged: it does not match its checksum.");
    }
  }
  return tensors;
}

void check_parts(const std::vector<CheckpointTensor>& tensors, const std::string& where) {
  std::vector<IndexedTensor> places;
  for (const CheckpointTensor& tensor : tensors) places.push_back(placed(tensor, 0));
  check_ranges(places, where);
}

}  // namespace capstan
