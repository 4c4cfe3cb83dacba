// What snapshots cost a training, in CPU time of all threads: one rank of it, started for each by bench/snapshots.
//
//   snapshots_rank FOLDER [--layers N] [--width N] [--rows N] [--stage N] [--pairs N] [--steps N] [--short]
//
// After a warm-up, in which the pace learns what a snapshot costs, blocks of as many steps as the pace puts between two
// snapshots take turns: one with a snapshot under way after every fourth step, so that it stands out of the noise, one
// without. Held against bounds: what a snapshot adds to the CPU time of all ranks, of that of the steps between two
// (1 %); the growth of RssAnon and RssShmem from the second snapshot to the last (2 MB and none); the bytes copied and
// hashed in a second of CPU time, of what memcpy copies of the same memory in the same minute (0.4), 64 MiB or more.
// --short: a small model, and no bound of the CPU time.

#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string>
#include <vector>

#include "bench/bound.hpp"
#include "bench/layers.hpp"
#include "core/checkpoint/snapshot.hpp"
#include "core/comm/communicator.hpp"
#include "core/elastic/snapshot_folder.hpp"
#include "core/engine/engine.hpp"

namespace {

using namespace capstan;

/// Bytes whose copy is measured, at least: more than caches hold, as what a training keeps.
constexpr std::size_t kCopied = 64 << 20;
/// Steps between snapshots of a block that makes some.
constexpr std::int64_t kDense = 4;

struct Arguments {
  std::string folder;
  std::int64_t layers = 24, width = 1024, rows = 64, stage = 2, pairs = 8, steps = 0;
  bool is_short = false;
};

Arguments parse(int count, char** words) {
  Arguments arguments;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const auto number = [&](std::int64_t& to) { to = i + 1 < count ? std::atoll(words[++i]) : 0; };
    if (word == "--layers")
      number(arguments.layers);
    else if (word == "--width")
      number(arguments.width);
    else if (word == "--rows")
      number(arguments.rows);
    else if (word == "--stage")
      number(arguments.stage);
    else if (word == "--pairs")
      number(arguments.pairs);
    else if (word == "--steps")
      number(arguments.steps);
    else if (word == "--short")
      arguments = {arguments.folder, 4, 256, 64, 2, 40, 5, true};
    else
      arguments.folder = word;
  }
  return arguments;
}

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Bytes that the process has of anonymous / shared memory.
struct Resident {
  std::int64_t anonymous = 0, shared = 0;
};

Resident resident() {
  Resident found;
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("RssAnon:")) found.anonymous = 1024 * std::stoll(line.substr(8));
    if (line.starts_with("RssShmem:")) found.shared = 1024 * std::stoll(line.substr(9));
  }
  return found;
}

/// The sum over all ranks.
double over_ranks(Communicator& ranks, double own) {
  double sum = 0;
  for (const std::string& text : ranks.all_gather_text("bench: sum", std::to_string(own))) sum += std::stod(text);
  return sum;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// GB copied in a second of CPU time, by memcpy and as a snapshot copies, between memory that was touched.
struct CopyRates {
  double plain = 0, hashed = 0;
};

CopyRates copy_rates(std::size_t bytes) {
  std::vector<std::byte> from(bytes, std::byte{1}), to(bytes, std::byte{2});
  std::vector<double> plain, hashed;
  std::uint64_t seen = 0;
  const auto rate = [&](const auto& copy) {
    const double begun = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    copy();
    return 1e-9 * static_cast<double>(bytes) / (seconds_of(CLOCK_THREAD_CPUTIME_ID) - begun);
  };
  for (int i = 0; i < 9; ++i) {
    plain.push_back(rate([&] { std::memcpy(to.data(), from.data(), bytes); }));
    hashed.push_back(rate([&] { seen ^= copy_hashed(to.data(), from.data(), bytes, copy_path(bytes)); }));
  }
  if (seen == 1) std::puts("");  // keeps the sums
  return {median(plain), median(hashed)};
}

/// One training with the folder of its snapshots.
class Training {
 public:
  Training(const Arguments& arguments, const std::shared_ptr<Communicator>& ranks)
      : layers_(arguments.layers, arguments.width),
        folder_(arguments.folder, ranks->rank(), 1),
        engine_(layers_.shown(), config(arguments, *ranks), plugins_, ranks),
        input_(at::randn({arguments.rows, arguments.width})) {}

  /// CPU seconds of this process for so many steps. With `snapshots` one is begun after each kDense of them, from the
  /// first on.
  double steps(std::int64_t count, bool snapshots) {
    const double begun = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    for (std::int64_t i = 0; i < count; ++i) {
      engine_.train_batch([&] {
        Batch batch;
        batch.tensors.emplace("x", input_);
        return batch;
      });
      if (i % kDense == 0 && snapshots) engine_.begin_snapshot(folder_);
    }
    engine_.finish_snapshot();
    return seconds_of(CLOCK_PROCESS_CPUTIME_ID) - begun;
  }
  Engine& engine() { return engine_; }

 private:
  Config config(const Arguments& arguments, const Communicator& ranks) {
    ConfigContext context;
    context.world_size = ranks.size();
    return load_config({R"({"train_micro_batch_size_per_gpu": 1, "steps_per_print": null, "gradient_clipping": 1.0,
                         "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "zero_optimization": {"stage": )" +
                            std::to_string(arguments.stage) + "}}",
                        "bench", false},
                       context, plugins_);
  }

  bench::Layers layers_;
  PluginIndex plugins_;
  SnapshotFolder folder_;
  Engine engine_;
  at::Tensor input_;
};

}  // namespace

int main(int count, char** words) {
  const Arguments arguments = parse(count, words);
  at::set_num_threads(1);
  const auto ranks = Communicator::connect(read_rendezvous(process_environment()), {});
  const auto share =
      static_cast<std::size_t>(12 * arguments.layers * arguments.width * arguments.width / ranks->size());
  const CopyRates rates = copy_rates(std::max(share, kCopied));
  Training training(arguments, ranks);
  training.steps(3, false);
  for (int i = 0; i < 4; ++i) training.steps(2, true);
  const double warm = training.engine().snapshot_seconds();
  double step = over_ranks(*ranks, training.steps(4, false)) / 4 / ranks->size();
  for (int i = 0; i < 4; ++i) training.steps(2, true);
  const double cost = over_ranks(*ranks, training.engine().snapshot_seconds() - warm) / 4 / ranks->size();
  // As SnapshotPace, at an overhead of 1 %.
  const std::int64_t every =
      arguments.steps > 0 ? arguments.steps : static_cast<std::int64_t>(std::ceil(1.5 * cost / 0.01 / step));

  const Resident before = resident();
  double with = 0, without = 0;
  for (std::int64_t pair = 0; pair < arguments.pairs; ++pair) {
    // Which comes first takes turns as well.
    for (const bool on : {pair % 2 == 0, pair % 2 != 0}) (on ? with : without) += training.steps(every, on);
  }
  const Resident after = resident();
  with = over_ranks(*ranks, with);
  without = over_ranks(*ranks, without);
  const double growth = over_ranks(*ranks, static_cast<double>(after.anonymous - before.anonymous)),
               shared_growth = over_ranks(*ranks, static_cast<double>(after.shared - before.shared));
  // Blocks with have made `dense` times as many as the pace would.
  const double dense = static_cast<double>((every + kDense - 1) / kDense), added = (with / without - 1) / dense;
  const bool cpu_met = arguments.is_short || added <= 0.01;
  const bool copy_met = rates.hashed >= 0.4 * rates.plain;
  const bool memory_met = growth <= 2e6 * ranks->size() && shared_growth <= 0;
  if (ranks->rank() == 0) {
    std::printf(
        "%.1f MB a rank, %d ranks, stage %lld; a step %.1f ms, a snapshot %.1f ms of CPU time: one every %lld steps\n",
        1e-6 * static_cast<double>(share), ranks->size(), static_cast<long long>(arguments.stage), 1e3 * step,
        1e3 * cost, static_cast<long long>(every));
    std::printf(
        "CPU time of %lld steps with %lld snapshots, of that without: %.4f; one every %lld adds %.2f %% (at most "
        "1)%s\n",
        static_cast<long long>(every * arguments.pairs),
        static_cast<long long>(dense) * static_cast<long long>(arguments.pairs), with / without,
        static_cast<long long>(every), 1e2 * added, bench::mark(cpu_met));
    std::printf("copied and hashed %.2f GB/s, memcpy %.2f GB/s: ratio %.2f (at least 0.4)%s\n", rates.hashed,
                rates.plain, rates.hashed / rates.plain, bench::mark(copy_met));
    std::printf("growth over %lld snapshots, all ranks: RssAnon %.2f MB (at most %d), RssShmem %.2f MB (none)%s\n",
                static_cast<long long>(dense) * static_cast<long long>(arguments.pairs), 1e-6 * growth,
                2 * ranks->size(), 1e-6 * shared_growth, bench::mark(memory_met));
  }
  return bench::exit_code(cpu_met && copy_met && memory_met);
}
