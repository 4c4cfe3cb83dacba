#include "core/data/metric_index.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "capstan/sdk/indexed_file.hpp"
#include "core/errors.hpp"

namespace capstan {
namespace {

using sdk::IndexedWriter;

struct Measured {
  std::int64_t value, sample;
  bool operator<(const Measured& other) const {
    return value != other.value ? value < other.value : sample < other.sample;
  }
};

/// Room for all samples in a file without a name: pages of it are no memory of the process's own.
class Scratch {
 public:
  Scratch(const std::filesystem::path& folder, std::int64_t samples)
      : bytes_(std::max<std::size_t>(1, static_cast<std::size_t>(samples) * sizeof(Measured))) {
    const std::string path = (folder / "sorted.part").string();
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (descriptor < 0) fail(path, errno);
    ::unlink(path.c_str());
    const int reserved = ::posix_fallocate(descriptor, 0, static_cast<off_t>(bytes_));
    void* mapped =
        reserved == 0 ? ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0) : MAP_FAILED;
    const int reason = reserved != 0 ? reserved : errno;
    ::close(descriptor);
    if (mapped == MAP_FAILED) fail(path, reason);
    items_ = {static_cast<Measured*>(mapped), static_cast<std::size_t>(samples)};
  }
  ~Scratch() { ::munmap(items_.data(), bytes_); }
  Scratch(const Scratch&) = delete;

  std::span<Measured> items() const { return items_; }

 private:
  [[noreturn]] void fail(const std::string& path, int reason) const {
    throw RuntimeFault(path + ": no room for " + std::to_string(bytes_) +
                       " bytes, in which samples are sorted: " + std::strerror(reason) + ".");
  }

  std::size_t bytes_;
  std::span<Measured> items_;
};

/// A row a number.
void put_row(IndexedWriter& writer, std::int64_t number) {
  writer.append({&number, 1});
  writer.end_row();
}

/// As joined files have it, of which each brings its end.
void finish_joined(IndexedWriter& writer) {
  writer.end_document();
  writer.end_document();
  writer.finish();
}

std::span<const Measured> equal_values(std::span<const Measured> sorted) {
  std::size_t count = 0;
  while (count < sorted.size() && sorted[count].value == sorted[0].value) ++count;
  return sorted.first(count);
}

/// Calls take(run) with the samples of each number, ascending.
template <class Take>
void each_run(std::span<const Measured> sorted, Take&& take) {
  while (!sorted.empty()) {
    const auto run = equal_values(sorted);
    take(run);
    sorted = sorted.subspan(run.size());
  }
}

void append_samples(IndexedWriter& writer, std::span<const Measured> run, std::vector<std::int64_t>& buffer) {
  constexpr std::size_t kAtOnce = 1 << 16;
  for (std::size_t begin = 0; begin < run.size(); begin += kAtOnce) {
    buffer.clear();
    for (const Measured& item : run.subspan(begin, std::min(kAtOnce, run.size() - begin)))
      buffer.push_back(item.sample);
    writer.append(buffer);
  }
}

void write_sorted(const std::string& name, std::span<const Measured> sorted, sdk::IndexedType values) {
  const sdk::IndexedType numbers = sdk::type_for(0, static_cast<std::int64_t>(sorted.size()) - 1);
  IndexedWriter to_metric(name + "_index_to_metric", values), to_sample(name + "_index_to_sample", numbers);
  std::vector<std::int64_t> buffer;
  std::int64_t rows = 0;
  each_run(sorted, [&](std::span<const Measured> run) {
    put_row(to_metric, run[0].value);
    append_samples(to_sample, run, buffer);
    to_sample.end_row();
    ++rows;
  });

  IndexedWriter merged(name + "_index_to_sample_percentile_merged", numbers);
  const std::int64_t together = std::max<std::int64_t>(1, rows / 100);
  std::int64_t row = 0;
  each_run(sorted, [&](std::span<const Measured> run) {
    append_samples(merged, run, buffer);
    if (++row % together == 0 || row == rows) merged.end_row();
  });
  merged.end_document();

  merged.finish();
  finish_joined(to_metric);
  finish_joined(to_sample);
}

}  // namespace

void write_metric_index(const std::filesystem::path& folder, const std::string& name, const MetricShards& shards,
                        std::int64_t samples, const std::function<void(double)>& got_on) {
  const auto tell = [&](double share) {
    if (got_on) got_on(share);
  };
  const Scratch scratch(folder, samples);
  std::int64_t low = INT64_MAX, high = INT64_MIN;
  for (std::int64_t shard = 0; shard < shards.count(); ++shard) {
    std::int64_t sample = shards.first_sample(shard);
    for (const std::int64_t value : shards.read(shard)) {
      low = std::min(low, value);
      high = std::max(high, value);
      scratch.items()[static_cast<std::size_t>(sample)] = {value, sample};
      ++sample;
    }
    tell(0.3 * static_cast<double>(shard + 1) / static_cast<double>(shards.count()));
  }
  const sdk::IndexedType values = samples == 0 ? sdk::IndexedType::kU8 : sdk::type_for(low, high);
  const std::string path = (folder / name).string();
  try {
    IndexedWriter by_sample(path + "_sample_to_metric", values);
    for (const Measured& item : scratch.items()) put_row(by_sample, item.value);
    finish_joined(by_sample);
    tell(0.5);
    std::sort(scratch.items().begin(), scratch.items().end());
    tell(0.7);
    write_sorted(path, scratch.items(), values);
  } catch (const sdk::Error& error) {
    throw RuntimeFault(error.what());
  }
  tell(1);
}

std::vector<std::int64_t> summed(const MetricShards& shards) {
  std::vector<std::int64_t> sum;
  for (std::int64_t shard = 0; shard < shards.count(); ++shard) {
    const std::vector<std::int64_t> part = shards.read(shard);
    sum.resize(part.size());
    for (std::size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
  }
  return sum;
}

void write_metric_value(const std::filesystem::path& folder, const std::string& name,
                        const std::vector<std::int64_t>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  try {
    IndexedWriter writer((folder / (name + "_metric_value")).string(),
                         values.empty() ? sdk::IndexedType::kU8 : sdk::type_for(*low, *high));
    writer.append(values);
    writer.end_row();
    writer.end_document();
    writer.finish();
  } catch (const sdk::Error& error) {
    throw RuntimeFault(error.what());
  }
}

}  // namespace capstan
