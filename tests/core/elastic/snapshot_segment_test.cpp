#include "core/elastic/snapshot_segment.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <functional>
#include <random>
#include <thread>

#include "core/checkpoint/snapshot.hpp"
#include "core/elastic/snapshot_folder.hpp"
#include "core/errors.hpp"
#include "core/registry/file_trust.hpp"
#include "tests/core/checkpoint/small_disk.hpp"
#include "tests/core/data/temporary_folder.hpp"

namespace capstan {
namespace {

using test::TemporaryFolder;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr auto kAll = [](const CheckpointTensor&) { return true; };

/// Two parameters, a state of one and a buffer, all of whose values tell the step.
std::vector<CheckpointTensor> tensors_of(std::int64_t step, std::int64_t numel) {
  const auto number = static_cast<double>(step);
  return {{"w", "param", {2 * numel}, numel, at::full({numel}, number, at::kFloat)},
          {"w", "exp_avg", {2 * numel}, numel, at::full({numel}, number, at::kBFloat16)},
          {"b", "param", {3, 1}, 0, at::full({3, 1}, number, at::kDouble)},
          {"empty", "buffer", {0, 7}, 0, at::full({0, 7}, number, at::kFloat)},
          {"count", "buffer", {}, 0, at::full({}, step, at::kLong)}};
}

SnapshotFacts facts_of(SnapshotId id, std::int64_t step) {
  return {.generation = id.generation, .sequence = id.sequence, .step = step, .world = 1, .rank = 0, .layout = 7};
}

/// As an engine that is alone writes one.
void write(SnapshotFolder& folder, std::int64_t step, const std::vector<CheckpointTensor>& tensors) {
  const SnapshotLayout layout(tensors);
  const std::string state = std::string(100, ' ') + std::to_string(step);
  const std::uint64_t bytes = layout.sizes(state.size()).file();
  SnapshotSegment& segment = folder.next();
  const SnapshotId id = folder.next_id();
  segment.reserve(bytes, bytes);
  write_snapshot(segment, layout, tensors, state, facts_of(id, step));
  folder.note_sealed(id);
  folder.keep(id, 1);
}

void write(SnapshotFolder& folder, std::int64_t step, std::int64_t numel) {
  write(folder, step, tensors_of(step, numel));
}

/// The step that all of a segment tells; -1 where it tells of several.
std::int64_t step_in(const SealedSegment& segment, std::int64_t numel) {
  const std::int64_t step = segment.facts().step;
  const auto found = read_snapshot(segment, kAll);
  const auto expected = tensors_of(step, numel);
  bool same = found.size() == expected.size() && std::stoll(std::string(segment.state())) == step;
  for (std::size_t k = 0; same && k < found.size(); ++k) {
    same = found[k].parameter == expected[k].parameter && found[k].state == expected[k].state &&
           found[k].shape == expected[k].shape && found[k].offset == expected[k].offset &&
           found[k].values.scalar_type() == expected[k].values.scalar_type() &&
           at::equal(found[k].values, expected[k].values.reshape({-1}));
  }
  return same ? step : -1;
}

TEST(SnapshotSegment, IsReadAsItWasSealed) {
  const TemporaryFolder place;
  SnapshotFolder folder(place.path(), 3, 1);
  EXPECT_TRUE(folder.find().segments.empty());
  write(folder, 10, 1000);
  auto found = folder.find();
  ASSERT_EQ(found.segments.size(), 1u);
  EXPECT_EQ(step_in(found.segments[0], 1000), 10);
  EXPECT_EQ(found.segments[0].facts().layout, 7u);
  for (const std::int64_t step : {20, 30, 40}) write(folder, step, 1000);
  found = folder.find();
  ASSERT_EQ(found.segments.size(), 2u);
  EXPECT_EQ(step_in(found.segments[0], 1000) + step_in(found.segments[1], 1000), 30 + 40);
  EXPECT_TRUE(found.damaged.empty());
}

TEST(SnapshotSegment, GrowsWithWhatItHolds) {
  const TemporaryFolder place;
  SnapshotFolder folder(place.path(), 0, 1);
  for (const std::int64_t numel : {10, 100'000, 50, 200'000}) write(folder, numel, numel);
  const auto found = folder.find();
  ASSERT_EQ(found.segments.size(), 2u);
  EXPECT_EQ(step_in(found.segments[0], found.segments[0].facts().step) +
                step_in(found.segments[1], found.segments[1].facts().step),
            50 + 200'000);
}

TEST(SnapshotFolder, WritesOverWhatIsNotKept) {
  const TemporaryFolder place;
  SnapshotFolder folder(place.path(), 0, 1);
  write(folder, 1, 10);  // kept by write()
  write(folder, 2, 10);
  // A world in which another rank has lost its part of the second: all went back to the first.
  folder.enter(2);
  folder.keep({1, 1}, 1);
  SnapshotSegment& next = folder.next();
  const auto tensors = tensors_of(3, 10);
  const SnapshotLayout layout(tensors);
  next.reserve(layout.sizes(200).file(), layout.sizes(200).file());
  next.open(layout.sizes(200));  // and is killed
  const auto found = folder.find();
  ASSERT_EQ(found.segments.size(), 1u);
  EXPECT_EQ(step_in(found.segments[0], 10), 1);
}

TEST(SnapshotFolder, TakesUpWhatAProcessOfItsNumberHasLeft) {
  const TemporaryFolder place;
  {
    SnapshotFolder folder(place.path(), 0, 1);
    write(folder, 1, 10);
    write(folder, 2, 10);
  }
  SnapshotFolder folder(place.path(), 0, 2);
  write(folder, 3, 10);
  const auto found = folder.find();
  ASSERT_EQ(found.segments.size(), 2u);
  EXPECT_EQ(step_in(found.segments[0], 10) + step_in(found.segments[1], 10), 2 + 3);
}

TEST(SnapshotFolder, RemovesWhatIsOfNoMemberAndNothingElse) {
  const TemporaryFolder place;
  for (const std::int64_t member : {0, 1, 22}) {
    SnapshotFolder folder(place.path(), member, 1);
    write(folder, 5, 10);
  }
  place.write("member-1.notes", "mine");
  place.write("readme", "mine");
  const SnapshotFolder folder(place.path(), 0, 1);
  folder.remove_others({0, 22}, true);
  EXPECT_EQ(folder.find().segments.size(), 2u);
  EXPECT_EQ(test::read_bytes(place / "member-1.notes"), "mine");
  EXPECT_EQ(test::read_bytes(place / "readme"), "mine");
}

TEST(SnapshotFolder, LeavesOthersPartsOfTheKeptSnapshotUntilItIsSuperseded) {
  const TemporaryFolder place;
  for (const std::int64_t member : {0, 1}) {
    SnapshotFolder folder(place.path(), member, 1);
    for (const std::int64_t step : {5, 6, 7}) write(folder, step, 10);
  }
  SnapshotFolder folder(place.path(), 0, 2);
  EXPECT_EQ(folder.find().segments.size(), 4u);
  folder.keep({1, 2}, 1);
  folder.remove_others({0}, /*superseded=*/false);
  const auto found = folder.find();
  ASSERT_EQ(found.segments.size(), 3u);
  EXPECT_EQ(found.segments[2].facts().step, 6);
  folder.remove_others({0}, /*superseded=*/true);
  EXPECT_EQ(folder.find().segments.size(), 2u);
}

/// Writes snapshots until it is killed, and tells the step of each that is sealed.
[[noreturn]] void write_until_killed(const std::filesystem::path& place, int told, std::int64_t numel) {
  at::set_num_threads(1);
  SnapshotFolder folder(place, 0, 1);
  for (std::int64_t step = 1;; ++step) {
    write(folder, step, numel);
    if (::write(told, &step, sizeof step) != sizeof step) _exit(3);
  }
}

/// Writes two snapshots, and a third one until the values of tensor `stop` are to be copied: tells so, and waits.
[[noreturn]] void stop_within_a_copy(const std::filesystem::path& place, int told, std::int64_t numel,
                                     std::size_t stop) {
  at::set_num_threads(1);
  SnapshotFolder folder(place, 0, 1);
  for (const std::int64_t step : {1, 2}) write(folder, step, numel);
  auto tensors = tensors_of(3, numel);
  CheckpointTensor& last = tensors[stop];
  last.read = [told, values = last.values.reshape({-1})](std::int64_t, std::int64_t) -> at::Tensor {
    const std::int64_t step = 3;
    if (::write(told, &step, sizeof step) != sizeof step) _exit(3);
    for (;;) pause();
  };
  last.values = values_elsewhere({last.values.numel()}, last.values.scalar_type());
  write(folder, 3, tensors);
  _exit(4);
}

/// Runs `body`, which gets the writing end of a pipe, in a process of its own, until `until` has read from it. Returns
/// the last step that the process has told before it was killed.
std::int64_t killed(const std::function<void(int told)>& body, const std::function<void(int told)>& until) {
  int told[2];
  if (pipe(told) != 0) return -1;
  const pid_t child = fork();
  if (child == 0) body(told[1]);
  close(told[1]);
  until(told[0]);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  std::int64_t step = 0, next = 0;
  while (read(told[0], &next, sizeof next) == static_cast<ssize_t>(sizeof next)) step = next;
  close(told[0]);
  return step;
}

TEST(SnapshotSegment, OutlivesAKillWithinACopyWithTheOneBefore) {
  constexpr std::int64_t kNumel = 1000;
  for (const std::size_t stop : {0, 1, 2, 4}) {  // tensor 3 has no values
    const TemporaryFolder place("/dev/shm");
    killed([&](int told) { stop_within_a_copy(place.path(), told, kNumel, stop); },
           [&](int told) {
             std::int64_t step = 0;
             ASSERT_EQ(read(told, &step, sizeof step), static_cast<ssize_t>(sizeof step)) << stop;
           });
    const auto found = SnapshotFolder(place.path(), 1, 1).find();
    EXPECT_TRUE(found.damaged.empty()) << found.damaged.front();
    ASSERT_EQ(found.segments.size(), 1u) << "the third is not sealed, and takes the place of the first";
    EXPECT_EQ(step_in(found.segments.front(), kNumel), 2) << stop;
  }
}

TEST(SnapshotSegment, OutlivesAKillAtAnyInstantWithTheNewestOrTheOneBefore) {
  constexpr std::int64_t kNumel = 300'000;
  std::mt19937 random(1);
  for (int kill_number = 0; kill_number < 50; ++kill_number) {
    const TemporaryFolder place("/dev/shm");
    std::int64_t first = 0;
    const std::int64_t later = killed([&](int told) { write_until_killed(place.path(), told, kNumel); },
                                      [&](int told) {
                                        // The first is there; then any instant of the next few.
                                        ASSERT_EQ(read(told, &first, sizeof first), static_cast<ssize_t>(sizeof first));
                                        std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
                                      });
    const std::int64_t step = std::max(first, later);
    const auto found = SnapshotFolder(place.path(), 1, 1).find();
    EXPECT_TRUE(found.damaged.empty()) << found.damaged.front();
    std::int64_t newest = -1;
    for (const SealedSegment& segment : found.segments) {
      EXPECT_NE(step_in(segment, kNumel), -1);
      newest = std::max(newest, segment.facts().step);
    }
    EXPECT_TRUE(newest == step || newest == step + 1) << newest << " where " << step << " was told";
  }
}

class Damage : public testing::Test {
 protected:
  Damage() {
    SnapshotFolder folder(place_.path(), 0, 1);
    write(folder, 10, kNumel);
    file_ = place_ / "member-0.0";
    bytes_ = test::read_bytes(file_);
  }
  void put(const std::string& bytes) const { std::ofstream(file_, std::ios::binary) << bytes; }
  SnapshotFolder::Found found() const { return SnapshotFolder(place_.path(), 1, 1).find(); }

  static constexpr std::int64_t kNumel = 500;
  TemporaryFolder place_{"/dev/shm"};
  std::filesystem::path file_;
  std::string bytes_;
};

TEST_F(Damage, OfAnyBitIsNoticedOrChangesNothing) {
  int noticed = 0, unsealed = 0, harmless = 0;
  std::mt19937 random(2);
  const std::size_t written = SealedSegment::read(file_)->bytes().size();
  for (std::size_t at = 0; at < written; at += at < 256 ? 1 : 17) {
    std::string flipped = bytes_;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << random() % 8));
    put(flipped);
    const auto result = found();
    if (!result.damaged.empty()) {
      EXPECT_THAT(result.damaged[0], HasSubstr("snapshot '" + file_.string() + "': "));
      ++noticed;
      continue;
    }
    if (result.segments.empty()) {
      ++unsealed;
      continue;
    }
    try {
      EXPECT_EQ(step_in(result.segments[0], kNumel), 10) << "byte " << at;
      ++harmless;
    } catch (const RuntimeFault& fault) {
      EXPECT_THAT(fault.what(), HasSubstr(file_.string()));
      ++noticed;
    }
  }
  // Filling: the rest of the header's page, and up to 63 bytes behind each region and tensor.
  EXPECT_LE(harmless, (256 - 144) + (4096 - 256) / 17 + 10 * 64 / 17 + 20);
  EXPECT_GT(noticed, 300);
  EXPECT_EQ(unsealed, 0);
}

TEST_F(Damage, ToATensorIsToldByItsName) {
  const auto sealed = SealedSegment::read(file_);
  ASSERT_TRUE(sealed);
  const auto data = static_cast<std::size_t>(sealed->data().data() - sealed->bytes().data());
  std::string flipped = bytes_;
  flipped[data + 1] = static_cast<char>(flipped[data + 1] ^ 1);
  put(flipped);
  const auto damaged = SealedSegment::read(file_);
  ASSERT_TRUE(damaged);
  EXPECT_THAT([&] { read_snapshot(*damaged, kAll); },
              ThrowsMessage<RuntimeFault>("snapshot '" + file_.string() +
                                          "': param of 'w' is damaged: it does not match its checksum."));
  // A rank that has no use for a tensor does not read it.
  EXPECT_NO_THROW(read_snapshot(*damaged, [](const CheckpointTensor& tensor) { return tensor.state == "buffer"; }));
}

TEST_F(Damage, OfTheFileAsAWholeIsTold) {
  const std::size_t written = SealedSegment::read(file_)->bytes().size();
  const auto told = [&](const std::string& bytes) {
    put(bytes);
    const auto result = found();
    EXPECT_TRUE(result.segments.empty());
    return result.damaged.empty() ? "" : result.damaged[0];
  };
  const std::string where = "snapshot '" + file_.string() + "': ";
  EXPECT_EQ(told(bytes_.substr(0, written - 1)), where + "it was cut off: it has " + std::to_string(written - 1) +
                                                     " bytes, " + std::to_string(written) + " were written.");
  EXPECT_EQ(told(bytes_.substr(0, 4096)),
            where + "it was cut off: it has 4096 bytes, " + std::to_string(written) + " were written.");
  const std::string foreign = where + "it is not a snapshot of this program.";
  EXPECT_EQ(told(bytes_.substr(0, 4095)), foreign);
  EXPECT_EQ(told("notes"), foreign);
  EXPECT_EQ(told(std::string(10'000, 'x')), foreign);
  // A process that was killed as it made the file.
  EXPECT_EQ(told(""), "");
  EXPECT_EQ(told(std::string(10'000, '\0')), "");
  std::filesystem::remove(file_);
  std::filesystem::create_directory(file_);
  EXPECT_THAT(found().damaged, testing::ElementsAre(foreign));
}

TEST_F(Damage, ThatAnotherUserHasPlantedIsNotRead) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder to another user";
  constexpr uid_t kNobody = 65534;
  const std::string nobody = user_name(kNobody);
  ASSERT_EQ(chown(file_.c_str(), kNobody, kNobody), 0);
  EXPECT_THAT(found().damaged, testing::ElementsAre("snapshot '" + file_.string() + "': it belongs to " + nobody +
                                                    ", not to you (root), and is not read."));
  const std::string whose = ": belongs to " + nobody + ", not to you (root), so that nothing in it is used.";
  SnapshotFolder folder(place_.path(), 0, 2);
  EXPECT_THAT(
      [&] {
        write(folder, 20, kNumel);
        write(folder, 30, kNumel);
      },
      ThrowsMessage<RuntimeFault>(HasSubstr("'" + file_.string() + "'" + whose)));
  ASSERT_EQ(chown(place_.path().c_str(), kNobody, kNobody), 0);
  EXPECT_THAT([&] { found(); }, ThrowsMessage<RuntimeFault>(HasSubstr("'" + place_.path().string() + "'" + whose)));
}

TEST_F(Damage, InAPlaceOfALinkAFifoOrAnOpenFolderIsNamed) {
  const std::filesystem::path link = place_ / "link";
  std::filesystem::create_directory_symlink(place_.path(), link);
  EXPECT_THAT([&] { SnapshotFolder(link, 0, 1); },
              ThrowsMessage<RuntimeFault>("'" + link.string() +
                                          "': is a link, which is not followed, where a folder was expected. Remove "
                                          "it."));
  ASSERT_EQ(chmod(place_.path().c_str(), 0777), 0);
  EXPECT_THAT([&] { SnapshotFolder(place_.path(), 0, 1); },
              ThrowsMessage<RuntimeFault>(HasSubstr("has the mode 0777: other users may write to it")));
  ASSERT_EQ(chmod(place_.path().c_str(), 0755), 0);
  std::filesystem::remove(file_);
  ASSERT_EQ(mkfifo(file_.c_str(), 0600), 0);
  EXPECT_THAT(found().damaged,
              testing::ElementsAre("snapshot '" + file_.string() + "': it is not a snapshot of this program."));
  SnapshotFolder folder(place_.path(), 0, 2);
  EXPECT_THAT([&] { write(folder, 20, kNumel); },
              ThrowsMessage<RuntimeFault>("'" + file_.string() +
                                          "': is a FIFO, where a regular file was expected. Remove it."));
}

TEST(SnapshotSegment, WithoutRoomKeepsWhatIsThereAndSaysSo) {
  const TemporaryFolder place;
  const test::SmallDisk disk(place.path(), "1m");
  if (!disk.mounted()) GTEST_SKIP() << "a small file system cannot be mounted here: " << disk.reason();
  SnapshotFolder folder(place.path(), 0, 1);
  write(folder, 10, 20'000);
  write(folder, 20, 20'000);
  EXPECT_THAT([&] { write(folder, 30, 200'000); },
              ThrowsMessage<RuntimeFault>(
                  testing::AllOf(HasSubstr("'" + (place / "member-0.0").string() + "': no room for its "),
                                 HasSubstr(" bytes: No space left on device."))));
  const auto found = folder.find();
  ASSERT_EQ(found.segments.size(), 2u);
  EXPECT_EQ(step_in(found.segments[0], 20'000), 10);
  EXPECT_EQ(step_in(found.segments[1], 20'000), 20);
  write(folder, 40, 20'000);
  EXPECT_EQ(step_in(folder.find().segments[0], 20'000), 40);
}

}  // namespace
}  // namespace capstan
