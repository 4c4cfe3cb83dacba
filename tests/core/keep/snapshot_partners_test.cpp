// Copies of snapshots on other hosts.

#include "core/keep/snapshot_partners.hpp"

#include <ATen/ops/full.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/checkpoint/snapshot.hpp"
#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

constexpr std::int64_t kNumel = 4'000'000;  // so that a transfer takes a while
const std::vector<std::int64_t> kMembers = {10, 11};

std::vector<CheckpointTensor> tensors_of(std::int64_t step) {
  return {{"w", "param", {kNumel}, 0, at::full({kNumel}, static_cast<double>(step), at::kFloat)}};
}

/// As an engine on a host of its own writes one.
SnapshotId write(SnapshotFolder& folder, int rank, std::int64_t step) {
  const auto tensors = tensors_of(step);
  const SnapshotLayout layout(tensors);
  SnapshotSegment& segment = folder.next();
  const SnapshotId id = folder.next_id();
  segment.reserve(layout.sizes(0).file(), layout.sizes(0).file());
  write_snapshot(segment, layout, tensors, "",
                 {.generation = id.generation, .sequence = id.sequence, .step = step, .world = 2, .rank = rank});
  folder.note_sealed(id);
  return id;
}

/// Whether the copy that comes to this host as a file has been begun and is not all there.
bool is_under_way(const std::filesystem::path& copy) {
  std::array<char, 16> head{};  // the magic, then the seal
  const int file = open(copy.c_str(), O_RDONLY | O_CLOEXEC);
  const bool whole = file >= 0 && read(file, head.data(), head.size()) == static_cast<ssize_t>(head.size());
  if (file >= 0) close(file);
  return whole && head[0] != 0 && std::memcmp(head.data() + 8, "\0\0\0\0\0\0\0\0", 8) == 0;
}

std::int64_t step_of(const SealedSegment& segment) {
  const auto tensors = read_snapshot(segment, [](const CheckpointTensor&) { return true; });
  return tensors.at(0).values.const_data_ptr<float>()[kNumel - 1] == static_cast<float>(segment.facts().step)
             ? segment.facts().step
             : -1;
}

/// Steps of the sealed segments of a host, by member and keeper, as their files are named.
std::vector<std::string> found_on(const std::string& folder) {
  std::vector<std::string> found;
  const SnapshotFolder::Found all = SnapshotFolder(folder, 99, 1).find();
  EXPECT_TRUE(all.damaged.empty()) << all.damaged.front();
  for (const SealedSegment& segment : all.segments) {
    const std::string name = segment.path().stem().string();
    found.push_back(name + ": " + std::to_string(step_of(segment)));
  }
  return found;
}

TEST(SnapshotPartners, KeepTheOlderCopyWhereOneIsKilledInTheMiddleOfATransfer) {
  const char* given = std::getenv("CAPSTAN_TEST_HOSTS");
  std::optional<test::TemporaryFolder> place;  // not in the ranks, which end without removing it
  const std::string folder = given ? given : place.emplace("/dev/shm").path().string();
  test::RanksOptions options;
  options.ranks_per_host = 1;
  options.watch_every = std::chrono::milliseconds(50);
  options.environment = [&](int) { return std::vector<std::string>{"CAPSTAN_TEST_HOSTS=" + folder}; };
  const auto results = test::run_ranks(
      2,
      [&](Communicator& ranks) {
        const int rank = ranks.rank();
        const std::string host = folder + "/" + std::to_string(rank);
        SnapshotFolder snapshots(host, kMembers[static_cast<std::size_t>(rank)], 1);
        std::thread killer;
        for (const std::int64_t step : {1, 2}) {
          const SnapshotId id = write(snapshots, rank, step);
          if (step == 2 && rank == 1) {
            killer = std::thread([copy = host + "/member-10.kept-by-11.1"] {
              while (!is_under_way(copy)) {
              }
              kill(getpid(), SIGKILL);
            });
          }
          const auto segment_path = host + "/member-" + std::to_string(kMembers[static_cast<std::size_t>(rank)]) + "." +
                                    std::to_string(step - 1);
          const SnapshotSegment sealed(segment_path);
          if (step == 2) {
            EXPECT_THROW(copy_to_partners(snapshots, &sealed, id, 1, kMembers, ranks), RuntimeFault);
          } else {
            copy_to_partners(snapshots, &sealed, id, 1, kMembers, ranks);
            snapshots.keep(id, 1);
          }
        }
        if (killer.joinable()) killer.detach();
      },
      options);
  EXPECT_EQ(results[0].exit_code, 0) << results[0].out << results[0].err;
  EXPECT_EQ(results[1].signal, SIGKILL) << results[1].out << results[1].err;
  // The first snapshot is whole on each host alone, whichever is lost.
  using ::testing::Contains;
  EXPECT_THAT(found_on(folder + "/0"), ::testing::AllOf(Contains("member-10: 1"), Contains("member-11.kept-by-10: 1")));
  EXPECT_THAT(found_on(folder + "/1"), ::testing::AllOf(Contains("member-11: 1"), Contains("member-10.kept-by-11: 1"),
                                                        ::testing::Not(Contains("member-10.kept-by-11: 2"))));
}

}  // namespace
}  // namespace capstan
