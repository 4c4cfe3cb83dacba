#include "core/elastic/snapshot_folder.hpp"

#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <system_error>

#include "core/elastic/own_folder.hpp"
#include "core/errors.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "member-";

/// "member-3.0" and "member-3.1"; of a copy that member 7 keeps "member-3.kept-by-7.0".
fs::path segment_path(const fs::path& folder, std::int64_t member, std::int64_t keeper, int which) {
  const std::string kept = keeper == member ? "" : ".kept-by-" + std::to_string(keeper);
  return folder / (std::string(kPrefix) + std::to_string(member) + kept + "." + std::to_string(which));
}

/// The member whose segment a file is, by its name; -1: it is none.
std::int64_t member_of(const fs::path& file) {
  const std::string name = file.filename().string();
  if (!name.starts_with(kPrefix) || !(name.ends_with(".0") || name.ends_with(".1"))) return -1;
  std::int64_t member = -1;
  const char* end = name.data() + name.find('.');
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, member);
  return error == std::errc() && stop == end ? member : -1;
}

std::vector<fs::path> segment_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    if (member_of(entries->path()) >= 0) files.push_back(entries->path());
  }
  if (error) throw RuntimeFault("snapshots in '" + folder.string() + "': " + error.message() + ".");
  std::sort(files.begin(), files.end());
  return files;
}

/// What a file holds; of generation 0 where that is nothing whole.
SnapshotId held_by(const fs::path& file) {
  try {
    const auto segment = SealedSegment::read(file);
    return segment ? SnapshotId{segment->facts().generation, segment->facts().sequence} : SnapshotId{};
  } catch (const RuntimeFault&) {
    return {};
  }
}

}  // namespace

SnapshotFolder::SnapshotFolder(fs::path path, std::int64_t member, std::int64_t generation)
    : path_(std::move(path)), member_(member), generation_(generation) {
  OwnFolder::make(path_, OwnFolder::Closed::kToWriters);
  own_ = pair_of(member);
}

void SnapshotFolder::enter(std::int64_t generation) {
  generation_ = generation;
  sequence_ = 0;
}

SnapshotFolder::Pair SnapshotFolder::pair_of(std::int64_t member) const {
  Pair pair;
  pair.member = member;
  for (const int which : {0, 1}) {
    const fs::path file = segment_path(path_, member, member_, which);
    pair.segments[which] = std::make_unique<SnapshotSegment>(file);
    pair.holds[which] = held_by(file);
  }
  return pair;
}

int SnapshotFolder::Pair::next_after(SnapshotId kept) const {
  const bool keeps = kept != SnapshotId{} && (holds[0] == kept || holds[1] == kept);
  return keeps ? (holds[0] == kept ? 1 : 0) : (holds[0] <= holds[1] ? 0 : 1);
}

SnapshotSegment& SnapshotFolder::Pair::next(SnapshotId kept) {
  written = next_after(kept);
  holds[written] = {};
  return *segments[written];
}

SnapshotSegment& SnapshotFolder::next() { return own_.next(kept_); }

SnapshotSegment& SnapshotFolder::next_copy(std::int64_t member) {
  auto found = std::find_if(copies_.begin(), copies_.end(), [&](const Pair& pair) { return pair.member == member; });
  if (found == copies_.end()) found = copies_.insert(found, pair_of(member));
  return found->next(kept_);
}

void SnapshotFolder::note_sealed_copy(std::int64_t member, SnapshotId id) {
  for (Pair& pair : copies_) {
    if (pair.member == member) pair.holds[pair.written] = id;
  }
}

SnapshotFolder::Found SnapshotFolder::find() const {
  Found found;
  for (const fs::path& file : segment_files(path_)) {
    try {
      if (auto segment = SealedSegment::read(file)) found.segments.push_back(std::move(*segment));
    } catch (const RuntimeFault& fault) {
      found.damaged.emplace_back(fault.what());
    }
  }
  return found;
}

void SnapshotFolder::remove_others(const std::vector<std::int64_t>& members, bool superseded) const {
  for (const fs::path& file : segment_files(path_)) {
    std::error_code ignored;
    if (std::find(members.begin(), members.end(), member_of(file)) != members.end()) continue;
    if (superseded || kept_ == SnapshotId{} || held_by(file) != kept_) fs::remove(file, ignored);
  }
}

std::uint64_t SnapshotFolder::allocated() const {
  std::uint64_t bytes = 0;
  for (const fs::path& file : segment_files(path_)) bytes += SnapshotSegment(file).allocated();
  return bytes;
}

std::uint64_t SnapshotFolder::free_bytes() const {
  struct statvfs facts {};
  if (statvfs(path_.c_str(), &facts) != 0) {
    throw RuntimeFault("snapshots in '" + path_.string() + "': " + std::generic_category().message(errno) + ".");
  }
  return static_cast<std::uint64_t>(facts.f_bavail) * facts.f_frsize;
}

}  // namespace capstan
