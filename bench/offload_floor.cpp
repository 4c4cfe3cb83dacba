// What the back end nvme makes of a disk: passes over tiles of 48 MiB, each read while the one before it is written, by
// the plugin through its vtable and by a loop of its own on io_uring (registered huge pages, 256 in flight, requests of
// 1 MiB), in turns on the same disk. The bounds of the engine that is taken first, io_uring: 0.95 of the loop's bytes a
// second, and 0.010 CPU seconds a GB; exit code 1 when one is missed.
//
//   offload_floor [FOLDER] [TILES] [ROUNDS]     default: . 10 9; the disk needs four times TILES * 48 MiB
//   offload_floor --short FOLDER                two tiles, one round, no bounds: whether it runs
//
// Exit code 77: io_uring is refused here.

#include <fcntl.h>
#include <liburing.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/bound.hpp"
#include "core/registry/host.hpp"
#include "core/registry/registry.hpp"

namespace {

using namespace capstan;

constexpr std::size_t kRequest = 1 << 20, kTile = 48 * kRequest, kBuffers = 3;
constexpr int kSkipped = 77;
constexpr double kLeastRatio = 0.95, kMostCpu = 0.010;

/// There is nothing to compare with.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Memory as the engine's staging has it: huge pages, three tiles.
class Staging {
 public:
  Staging() {
    constexpr std::size_t kHugePage = 2 << 20;
    memory_ = static_cast<std::byte*>(std::aligned_alloc(kHugePage, kBytes));
    if (memory_ == nullptr) throw std::bad_alloc();
    madvise(memory_, kBytes, MADV_HUGEPAGE);
    std::memset(memory_, 1, kBytes);
  }
  ~Staging() { std::free(memory_); }
  Staging(const Staging&) = delete;

  static constexpr std::size_t kBytes = kBuffers * kTile;
  std::byte* all() const { return memory_; }
  std::byte* of_tile(std::size_t tile) const { return memory_ + tile % kBuffers * kTile; }

 private:
  std::byte* memory_;
};

/// Something that reads one tile while it writes another; -1: none of it. Returns when both are done.
class Mover {
 public:
  virtual ~Mover() = default;
  virtual void move(long read, long write) = 0;
};

class Floor final : public Mover {
 public:
  Floor(const std::string& folder, std::size_t tiles, const Staging& staging) : staging_(staging) {
    file_ = open(folder.c_str(), O_TMPFILE | O_DIRECT | O_RDWR | O_CLOEXEC, 0600);
    if (file_ < 0 || fallocate(file_, 0, 0, static_cast<off_t>(tiles * kTile)) != 0) {
      throw std::runtime_error(folder + ": " + std::strerror(errno));
    }
    const iovec all{staging.all(), Staging::kBytes};
    if (io_uring_queue_init(256, &ring_, 0) != 0 || io_uring_register_buffers(&ring_, &all, 1) != 0) {
      throw Refused("io_uring with registered buffers is needed for the loop to compare with");
    }
  }
  ~Floor() override {
    io_uring_queue_exit(&ring_);
    close(file_);
  }

  void move(long read, long write) override {
    unsigned flying = 0;
    for (std::size_t at = 0; at < kTile; at += kRequest) {
      if (read >= 0) flying += prepare(io_uring_prep_read_fixed, read, at);
    }
    for (std::size_t at = 0; at < kTile; at += kRequest) {
      if (write >= 0) flying += prepare(io_uring_prep_write_fixed, write, at);
    }
    io_uring_submit_and_wait(&ring_, flying);
    while (flying > 0) {
      io_uring_cqe* cqe = nullptr;
      if (io_uring_wait_cqe(&ring_, &cqe) != 0) continue;
      if (cqe->res != static_cast<int>(kRequest)) throw std::runtime_error("the loop's transfer came short");
      io_uring_cqe_seen(&ring_, cqe);
      --flying;
    }
  }

 private:
  template <class Prepare>
  unsigned prepare(Prepare prepare, long tile, std::size_t at) {
    const auto number = static_cast<std::size_t>(tile);
    prepare(io_uring_get_sqe(&ring_), file_, staging_.of_tile(number) + at, kRequest, number * kTile + at, 0);
    return 1;
  }

  const Staging& staging_;
  int file_ = -1;
  io_uring ring_{};
};

class Plugin final : public Mover {
 public:
  Plugin(const std::string& folder, const std::string& engine, std::size_t tiles, const Staging& staging)
      : staging_(staging), component_(make(folder, engine)), table_(component_.vtable<capstan_offload>()) {
    for (std::size_t tile = 0; tile < tiles; ++tile) {
      call([&](capstan_error* error) { return table_->register_buffer(component_.self(), tile, kTile, error); });
    }
    call([&](capstan_error* error) { return table_->lend(component_.self(), staging.all(), Staging::kBytes, error); });
  }
  ~Plugin() override { table_->take_back(component_.self(), staging_.all()); }

  void move(long read, long write) override {
    std::vector<std::uint64_t> tickets;
    if (read >= 0) tickets.push_back(start(read, 0));
    if (write >= 0) tickets.push_back(start(write, 1));
    for (const std::uint64_t ticket : tickets) {
      for (int done = 0; done == 0;) {
        call([&](capstan_error* error) { return table_->poll(component_.self(), ticket, &done, error); });
      }
    }
  }

 private:
  Component make(const std::string& folder, const std::string& engine) {
    const PluginIndex plugins = PluginIndex::scan();
    Json params = Json::object();
    for (const KeySpec& spec : plugins.find("offload", "nvme").component->params) {
      if (spec.fallback) params[spec.name] = *spec.fallback;
    }
    params["nvme_path"] = folder;
    params["engine"] = engine;
    params["intra_op_parallelism"] = 4;
    return Registry(plugins).create("bench", "offload", "nvme", params, &host_);
  }

  std::uint64_t start(long tile, std::uint32_t write) {
    const auto number = static_cast<std::uint64_t>(tile);
    const capstan_range range{sizeof range, write, number, 0, kTile, staging_.of_tile(number)};
    const capstan_range* const list = &range;
    std::uint64_t ticket = 0;
    call([&](capstan_error* error) { return table_->start(component_.self(), &list, 1, &ticket, error); });
    return ticket;
  }

  template <class Call>
  static void call(Call&& body) {
    call_plugin("nvme", std::forward<Call>(body));
  }

  const Staging& staging_;
  capstan_host host_ = make_host();
  Component component_;
  const capstan_offload* table_;
};

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Measured {
  double gb_per_second, cpu_per_gb;
};

Measured pass(Mover& mover, std::size_t tiles) {
  const double cpu = cpu_seconds();
  const auto begin = std::chrono::steady_clock::now();
  const long count = static_cast<long>(tiles);
  for (long i = 0; i <= count; ++i) mover.move(i < count ? i : -1, i - 1);
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  const double gb = 2e-9 * static_cast<double>(tiles * kTile);
  return {gb / wall.count(), (cpu_seconds() - cpu) / gb};
}

/// Median, smallest, largest.
struct Spread {
  explicit Spread(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    median = values[values.size() / 2];
    least = values.front();
    most = values.back();
  }
  double median, least, most;
};

int run(const std::string& folder, std::size_t tiles, std::size_t rounds, bool bounded) {
  const Staging staging;
  const char* const names[] = {"loop", "io_uring", "libaio", "threads"};
  std::vector<std::unique_ptr<Mover>> movers;
  movers.push_back(std::make_unique<Floor>(folder, tiles, staging));
  for (std::size_t i = 1; i < std::size(names); ++i) {
    movers.push_back(std::make_unique<Plugin>(folder, names[i], tiles, staging));
  }
  for (const auto& mover : movers) {
    for (std::size_t i = 0; i < tiles; ++i) mover->move(-1, static_cast<long>(i));
  }
  std::vector<std::vector<Measured>> all(movers.size());
  for (std::size_t round = 0; round < rounds; ++round) {
    for (std::size_t turn = 0; turn < movers.size(); ++turn) {
      const std::size_t which = (turn + round) % movers.size();
      all[which].push_back(pass(*movers[which], tiles));
    }
  }
  bool met = true;
  for (std::size_t i = 0; i < movers.size(); ++i) {
    std::vector<double> speed, cpu, ratio;
    for (std::size_t round = 0; round < rounds; ++round) {
      speed.push_back(all[i][round].gb_per_second);
      cpu.push_back(all[i][round].cpu_per_gb);
      ratio.push_back(all[i][round].gb_per_second / all[0][round].gb_per_second);
    }
    const Spread gb(speed), seconds(cpu), against(ratio);
    const bool holds = i != 1 || (against.median >= kLeastRatio && seconds.median <= kMostCpu);
    if (bounded) met &= holds;
    std::printf("%-8s %.2f GB/s, %.2f of the loop's (%.2f to %.2f), %.4f CPU s/GB (%.4f to %.4f)%s\n", names[i],
                gb.median, against.median, against.least, against.most, seconds.median, seconds.least, seconds.most,
                bounded ? bench::mark(holds) : "");
  }
  return bench::exit_code(met);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (!arguments.empty() && arguments[0] == "--short") return run(arguments.at(1), 2, 1, false);
    const std::size_t count = arguments.size();
    const std::size_t tiles = count > 1 ? std::stoul(arguments[1]) : 10;
    return run(count > 0 ? arguments[0] : ".", tiles, count > 2 ? std::stoul(arguments[2]) : 9, true);
  } catch (const Refused& refused) {
    std::fprintf(stderr, "offload_floor: skipped: this machine refuses the engine io_uring: %s\n", refused.what());
    return kSkipped;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "offload_floor: %s\n", error.what());
    return 1;
  }
}
