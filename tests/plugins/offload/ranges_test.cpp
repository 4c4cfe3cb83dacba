#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <thread>

#include "tests/plugins/offload/offload_plugin.hpp"
#include "tests/plugins/offload/sandbox.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan::test {
namespace {

/// A back end beside a model in memory. Ranges of one buffer that overlap keep the order of their calls, so what a read
/// must give is what the model holds when it is called.
class BesideModel {
 public:
  BesideModel(OffloadPlugin& plugin, std::uint64_t most_bytes, unsigned seed)
      : plugin_(plugin), most_bytes_(most_bytes), random_(seed), arena_(aligned_memory(kArena)) {
    plugin_.lend(arena_.get(), kArena);
    for (std::uint64_t id = 0; id < 3; ++id) {
      model_.emplace_back(3 * most_bytes + 77 * id, '\0');
      plugin_.add_buffer(id, model_.back().size());
      plugin_.wait(plugin_.write(id, 0, model_.back().size(), model_.back().data()));
    }
  }
  ~BesideModel() { plugin_.take_back(arena_.get()); }

  void run(int calls) {
    for (int i = 0; i < calls; ++i) {
      start();
      while (flying_.size() > 12 || (!flying_.empty() && pick(3) == 0)) end(pick(flying_.size()));
    }
    while (!flying_.empty()) end(0);
  }

 private:
  static constexpr std::size_t kArena = 8 << 20, kGuard = 64;

  struct Move {
    capstan_range range;
    std::string own;       // memory that was not lent, with guards around
    std::string expected;  // of a read
  };
  struct Flight {
    std::uint64_t ticket;
    std::vector<std::unique_ptr<Move>> moves;
  };

  std::uint64_t pick(std::uint64_t below) { return random_() % below; }

  void start() {
    Flight flight{};
    std::vector<capstan_range> ranges;
    for (std::uint64_t i = 1 + pick(4); i > 0; --i) {
      flight.moves.push_back(move());
      ranges.push_back(flight.moves.back()->range);
    }
    flight.ticket = plugin_.start(ranges);
    flying_.push_back(std::move(flight));
  }

  std::unique_ptr<Move> move() {
    const std::uint64_t id = pick(model_.size());
    std::string& kept = model_[id];
    const std::uint64_t units[] = {1, 4, 512, 4096};
    std::uint64_t unit = units[pick(4)];
    std::uint64_t offset = pick(kept.size()) / unit * unit;
    std::uint64_t bytes = pick(std::min<std::uint64_t>(most_bytes_, kept.size() - offset) + 1);
    if (bytes > unit) bytes = bytes / unit * unit;
    auto move = std::make_unique<Move>();
    char* memory = memory_for(*move, bytes, unit);
    const bool write = pick(2) == 0;
    move->range = {sizeof(capstan_range), write ? 1u : 0u, id, offset, bytes, memory};
    if (write) {
      for (std::uint64_t i = 0; i < bytes; ++i) memory[i] = static_cast<char>(random_());
      std::memcpy(kept.data() + offset, memory, bytes);
    } else {
      move->expected = kept.substr(offset, bytes);
    }
    return move;
  }

  /// Of the arena, which is lent, in turns; or of its own, anywhere.
  char* memory_for(Move& move, std::uint64_t bytes, std::uint64_t unit) {
    if (unit >= 512 && bytes <= kArena / 128) {
      slice_ = (slice_ + 1) % 128;
      return arena_.get() + slice_ * (kArena / 128);
    }
    move.own.assign(bytes + 2 * kGuard + 64, '#');
    return move.own.data() + kGuard + pick(64);
  }

  void end(std::uint64_t which) {
    Flight flight = std::move(flying_[which]);
    flying_.erase(flying_.begin() + static_cast<std::ptrdiff_t>(which));
    if (pick(2) == 0) {
      plugin_.wait(flight.ticket);
    } else {
      while (!plugin_.poll(flight.ticket)) std::this_thread::yield();
    }
    for (const auto& move : flight.moves) check(*move);
  }

  static void check(const Move& move) {
    const char* memory = static_cast<const char*>(move.range.memory);
    if (move.range.write == 0) {
      ASSERT_EQ(std::memcmp(memory, move.expected.data(), move.expected.size()), 0)
          << move.range.bytes << " bytes at " << move.range.offset << " of buffer " << move.range.buffer_id;
    }
    if (move.own.empty()) return;
    const char *begin = move.own.data(), *end = begin + move.own.size();
    const auto untouched = [](char c) { return c == '#'; };
    ASSERT_TRUE(std::all_of(begin, memory, untouched)) << "before the range";
    ASSERT_TRUE(std::all_of(memory + move.range.bytes, end, untouched)) << "behind the range";
  }

  OffloadPlugin& plugin_;
  std::uint64_t most_bytes_;
  std::mt19937_64 random_;
  std::unique_ptr<char, void (*)(void*)> arena_;
  std::size_t slice_ = 0;
  std::vector<std::string> model_;
  std::deque<Flight> flying_;
};

class NvmeRanges : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string refused = nvme_refusal(GetParam(), folder_.path().string());
    if (!refused.empty()) GTEST_SKIP() << refused;
  }

  Json params(const std::string& more = "{}") const {
    Json params = Json::parse(more);
    params["nvme_path"] = folder_.path().string();
    params["engine"] = GetParam();
    return params;
  }

  TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Engines, NvmeRanges, ::testing::Values("io_uring", "libaio", "threads"),
                         [](const auto& engine) { return std::string(engine.param); });

TEST_P(NvmeRanges, ComeBackAsTheyWereWhateverTheirSizeAlignmentOverlapAndNumberInFlight) {
  OffloadPlugin plugin("nvme", params());
  BesideModel(plugin, 40'000, 1).run(1500);
  EXPECT_EQ(plugin.stats().at("engine").as_string(), GetParam());
}

TEST_P(NvmeRanges, ComeBackWithRequestsOfTheSmallestSizeAndAQueueOfThree) {
  OffloadPlugin plugin("nvme", params(R"({"block_size": 512, "queue_depth": 3, "intra_op_parallelism": 3})"));
  BesideModel(plugin, 9000, 2).run(150);
  EXPECT_EQ(plugin.stats().at("depth").as_number(), 3);
}

TEST_P(NvmeRanges, ComeBackWhenEachRequestIsSubmittedAloneAndTheQueueIsDrained) {
  OffloadPlugin plugin("nvme", params(R"({"block_size": 4096, "queue_depth": 5, "single_submit": true,
                                         "overlap_events": false})"));
  BesideModel(plugin, 30'000, 3).run(300);
  EXPECT_THAT(plugin.log(), ::testing::HasSubstr("single_submit: true makes a system call of each request. It only "
                                                 "slows down; leave it out."));
  EXPECT_THAT(plugin.log(),
              ::testing::HasSubstr("overlap_events: false lets the disk run dry before more is submitted. "
                                   "It only slows down; leave it out."));
}

TEST_P(NvmeRanges, ComeBackThroughThePageCacheWhereDirectTransfersAreRefused) {
  EXPECT_EQ(in_child([&] {
              refuse_call(SYS_openat, EINVAL, 2, O_DIRECT);
              OffloadPlugin plugin("nvme", params(R"({"block_size": 4096})"));
              BesideModel(plugin, 20'000, 5).run(300);
              return std::string(HasFailure() ? "changed" : "equal");
            }),
            "equal");
}

TEST_P(NvmeRanges, OfManyMegabytesAreCutIntoRequestsOfTheBlockSize) {
  OffloadPlugin plugin("nvme", params());
  constexpr std::size_t kBytes = (12 << 20) + 512;
  const auto from = aligned_memory(kBytes), to = aligned_memory(kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) from.get()[i] = static_cast<char>(i * 2654435761u >> 13);
  plugin.add_buffer(0, kBytes);
  plugin.wait(plugin.write(0, 0, kBytes, from.get()));
  plugin.wait(plugin.read(0, 0, kBytes, to.get()));
  EXPECT_EQ(std::memcmp(from.get(), to.get(), kBytes), 0);
  const Json stats = plugin.stats();
  EXPECT_EQ(stats.at("requests").as_number(), 2 * 13);
  EXPECT_EQ(stats.at("bytes_read").as_number(), kBytes);
  EXPECT_EQ(stats.at("bytes_written").as_number(), kBytes);
}

TEST_P(NvmeRanges, AreNotTouchedAnyMoreWhenTheBackEndIsGone) {
  constexpr std::size_t kBytes = 24 << 20;
  const auto memory = aligned_memory(kBytes);
  {
    OffloadPlugin plugin("nvme", params());
    std::memset(memory.get(), 'w', kBytes);
    plugin.add_buffer(0, kBytes);
    plugin.wait(plugin.write(0, 0, kBytes, memory.get()));
    plugin.read(0, 0, kBytes, memory.get());
  }
  std::memset(memory.get(), 'm', kBytes);
  EXPECT_TRUE(std::all_of(memory.get(), memory.get() + kBytes, [](char c) { return c == 'm'; }));
}

TEST_P(NvmeRanges, AreNotDisturbedByAForkWhileTheyTravel) {
  OffloadPlugin plugin("nvme", params());
  constexpr std::size_t kBytes = 6 << 20;
  const auto from = aligned_memory(kBytes), to = aligned_memory(kBytes);
  std::memset(from.get(), 'f', kBytes);
  plugin.add_buffer(0, kBytes);
  plugin.wait(plugin.write(0, 0, kBytes, from.get()));
  const std::uint64_t ticket = plugin.read(0, 0, kBytes, to.get());
  in_child([] { return std::string(); });
  plugin.wait(ticket);
  EXPECT_EQ(std::memcmp(from.get(), to.get(), kBytes), 0);
}

TEST(CpuOffload, ReturnsRangesAsTheyWere) {
  OffloadPlugin plugin("cpu");
  BesideModel(plugin, 40'000, 4).run(500);
  EXPECT_EQ(plugin.stats().at("about").as_string(), "host memory");
}

TEST(CpuOffload, RefusesWhatDoesNotFitIntoMemoryOrItsBuffer) {
  OffloadPlugin plugin("cpu");
  EXPECT_THAT(
      thrown_by([&] { plugin.add_buffer(1, std::uint64_t{1} << 60); }),
      ::testing::HasSubstr("no memory for buffer 1: it needs 1152921504606846976 bytes beside the 0 that are held: "
                           "Cannot allocate memory. Offload to a disk: type nvme."));
  plugin.add_buffer(1, 100);
  char byte = 0;
  EXPECT_THAT(thrown_by([&] { plugin.write(1, 100, 1, &byte); }),
              ::testing::HasSubstr("range of 1 bytes at offset 100 is outside buffer 1, which has 100."));
  EXPECT_THAT(thrown_by([&] { plugin.write(2, 0, 1, &byte); }), ::testing::HasSubstr("buffer 2 is not registered."));
  plugin.release_buffer(1);
  EXPECT_EQ(plugin.stats().at("bytes_held").as_number(), 0);
}

}  // namespace
}  // namespace capstan::test
