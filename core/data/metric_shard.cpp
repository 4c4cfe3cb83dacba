#include "core/data/metric_shard.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "capstan/sdk/indexed_file.hpp"
#include "core/data/mapped_file.hpp"
#include "core/errors.hpp"
#include "core/xxh3.hpp"

namespace capstan {
namespace {

constexpr char kMagic[8] = {'C', 'A', 'P', 'S', 'H', 'A', 'R', 'D'};

struct Header {
  char magic[8];
  std::uint64_t identity, digest;
  std::int64_t shard, numbers;
};

std::uint64_t digest_of(std::span<const std::int64_t> numbers) { return xxh3(numbers.data(), numbers.size_bytes()); }

}  // namespace

MetricShards::MetricShards(std::filesystem::path folder, std::uint64_t identity, std::int64_t samples,
                           std::uint64_t width, std::int64_t shard_samples)
    : folder_(std::move(folder)),
      identity_(identity),
      samples_(samples),
      width_(width),
      shard_samples_(shard_samples) {}

std::int64_t MetricShards::count() const { return (samples_ + shard_samples_ - 1) / shard_samples_; }

std::int64_t MetricShards::samples_of(std::int64_t shard) const {
  return std::min(shard_samples_, samples_ - first_sample(shard));
}

std::size_t MetricShards::numbers_of(std::int64_t shard) const {
  return static_cast<std::size_t>(width_ > 0 ? static_cast<std::int64_t>(width_) : samples_of(shard));
}

std::filesystem::path MetricShards::path_of(std::int64_t shard) const {
  return folder_ / ("shard_" + std::to_string(shard));
}

bool MetricShards::is_done(std::int64_t shard) const {
  try {
    read(shard);
    return true;
  } catch (const RuntimeFault&) {
    return false;
  }
}

void MetricShards::write(std::int64_t shard, std::span<const std::int64_t> numbers) const {
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.identity = identity_;
  header.digest = digest_of(numbers);
  header.shard = shard;
  header.numbers = static_cast<std::int64_t>(numbers.size());
  try {
    sdk::detail::AsideFile file(path_of(shard).string());
    file.put(header);
    file.write(numbers.data(), numbers.size_bytes());
    file.sync();
    file.rename();
  } catch (const sdk::Error& error) {
    throw RuntimeFault(error.what());
  }
}

std::vector<std::int64_t> MetricShards::read(std::int64_t shard) const {
  const MappedFile file(path_of(shard));
  std::vector<std::int64_t> numbers(numbers_of(shard));
  const std::size_t bytes = numbers.size() * sizeof numbers[0];
  Header header{};
  if (file.size() == sizeof header + bytes) {
    std::memcpy(&header, file.data(), sizeof header);
    std::memcpy(numbers.data(), file.data() + sizeof header, bytes);
    if (std::memcmp(header.magic, kMagic, sizeof kMagic) == 0 && header.identity == identity_ &&
        header.shard == shard && header.numbers == static_cast<std::int64_t>(numbers.size()) &&
        header.digest == digest_of(numbers)) {
      return numbers;
    }
  }
  throw RuntimeFault(file.path().string() + ": is no whole shard of this analysis. Run 'capstan analyze' again.");
}

void MetricShards::remove() const {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

}  // namespace capstan
