#include "plugins/data/curriculum/clusters.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>
#include <utility>

#include "capstan/sdk/permutation.hpp"
#include "capstan/sdk/random.hpp"

namespace capstan::curriculum {
namespace {

/// Purposes of random numbers.
constexpr std::string_view kChoice = "curriculum: clusters of a step", kPass = "curriculum: order of a pass",
                           kShuffle = "curriculum: order in a step";

void flip(std::vector<std::uint64_t>& bits, const MetricIndex& index, std::int64_t from, std::int64_t to) {
  std::array<std::int64_t, 4096> some;
  for (std::int64_t place = from; place < to; place += static_cast<std::int64_t>(some.size())) {
    const std::int64_t count = std::min(to - place, static_cast<std::int64_t>(some.size()));
    index.read(place, count, some.data());
    for (std::int64_t i = 0; i < count; ++i) {
      const auto sample = static_cast<std::uint64_t>(some[static_cast<std::size_t>(i)]);
      bits[sample / 64] ^= std::uint64_t{1} << sample % 64;
    }
  }
}

}  // namespace

std::int64_t Cluster::member(std::int64_t place) const {
  if (members) return (*members)[static_cast<std::size_t>(place)];
  if (index == nullptr) return begin + place;
  std::int64_t sample = 0;
  index->read(begin + place, 1, &sample);
  return sample;
}

Clusters::Clusters(std::vector<const MetricIndex*> indices, std::int64_t samples, std::uint64_t seed)
    : indices_(std::move(indices)), samples_(samples), seed_(seed), reached_(indices_.size()) {
  if (indices_.size() < 2) return;
  if (samples > std::numeric_limits<std::uint32_t>::max()) {
    throw sdk::Error("the data has " + std::to_string(samples) +
                     " samples, and several clustered metrics can be used up to 4,294,967,295. Use one of them.");
  }
  const auto words = static_cast<std::size_t>((samples + 63) / 64);
  used_.assign(words, 0);
  within_.assign(indices_.size(), used_);
}

bool Clusters::extend(const std::vector<std::int64_t>& limits) {
  Cluster cluster;
  if (indices_.empty()) {
    if (clusters_.empty()) cluster.end = samples_;
  } else if (indices_.size() == 1) {
    cluster.index = indices_.front();
    cluster.begin = reached_.front();
    cluster.end = std::max(reached_.front(), indices_.front()->up_to(limits.front()));
    reached_.front() = cluster.end;
  } else {
    cluster.members = std::make_shared<const std::vector<std::uint32_t>>(newly_within(limits));
    cluster.end = static_cast<std::int64_t>(cluster.members->size());
  }
  if (cluster.size() == 0) return false;
  cluster.limits = limits;
  clusters_.push_back(std::move(cluster));
  return true;
}

std::vector<std::uint32_t> Clusters::newly_within(const std::vector<std::int64_t>& limits) {
  for (std::size_t i = 0; i < indices_.size(); ++i) {
    const std::int64_t reach = indices_[i]->up_to(limits[i]);
    // A limit may fall again, where a schedule lists its difficulties.
    flip(within_[i], *indices_[i], std::min(reached_[i], reach), std::max(reached_[i], reach));
    reached_[i] = reach;
  }
  std::vector<std::uint32_t> members;
  for (std::size_t word = 0; word < used_.size(); ++word) {
    std::uint64_t fresh = ~used_[word];
    for (const auto& bits : within_) fresh &= bits[word];
    used_[word] |= fresh;
    for (; fresh != 0; fresh &= fresh - 1) {
      members.push_back(static_cast<std::uint32_t>(word * 64 + static_cast<std::size_t>(std::countr_zero(fresh))));
    }
  }
  return members;
}

void Clusters::draw(std::int64_t step, std::span<std::int64_t> out) {
  std::vector<std::uint64_t> ends;  // of the clusters, put one behind the other
  for (const Cluster& cluster : clusters_) {
    ends.push_back((ends.empty() ? 0 : ends.back()) + static_cast<std::uint64_t>(cluster.size()));
  }
  const sdk::RandomStream choice(seed_, kChoice), shuffle(seed_, kShuffle);
  const auto major = static_cast<std::uint64_t>(step);
  std::vector<std::size_t> counts(clusters_.size());
  for (std::uint32_t i = 0; i < out.size(); ++i) {
    const std::uint64_t at = choice.below(ends.back(), major, 0, i);
    ++counts[static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), at) - ends.begin())];
  }
  std::size_t filled = 0;
  for (std::size_t i = 0; i < clusters_.size(); ++i) {
    take(i, out.subspan(filled, counts[i]));
    filled += counts[i];
  }
  // Fisher and Yates, as Durstenfeld has it (Algorithm 235, CACM 1964).
  for (auto i = static_cast<std::uint32_t>(out.size()); i > 1; --i) {
    std::swap(out[i - 1], out[static_cast<std::size_t>(shuffle.below(i, major, 0, i))]);
  }
}

void Clusters::take(std::size_t number, std::span<std::int64_t> out) {
  Cluster& cluster = clusters_[number];
  const sdk::RandomStream passes(seed_, kPass);
  std::optional<sdk::KeyedPermutation> order;
  for (std::int64_t& sample : out) {
    const std::int64_t pass = cluster.drawn / cluster.size(), place = cluster.drawn % cluster.size();
    if (!order || place == 0) {
      const auto key = passes.words(static_cast<std::uint64_t>(pass), static_cast<std::uint32_t>(number), 0)[0];
      order.emplace(static_cast<std::uint64_t>(cluster.size()), key);
    }
    sample = cluster.member(static_cast<std::int64_t>((*order)(static_cast<std::uint64_t>(place))));
    ++cluster.drawn;
  }
}

}  // namespace capstan::curriculum
