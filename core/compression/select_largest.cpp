#include "core/compression/select_largest.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/compression/selection_kernels.hpp"
#include "core/errors.hpp"
#include "core/host_tensor.hpp"

namespace capstan {
namespace {

constexpr std::int64_t kSamples = 2048;    // that each rank gives of a set
constexpr std::int64_t kSmallest = 65536;  // values of a set below which all of them are looked at
constexpr double kDeviations = 4;          // of a quantile of the sample, on either side
constexpr std::array<int, 3> kShifts = {21, 10, 0}, kBits = {11, 11, 10};
constexpr std::size_t kMostBins = 2048;

using Key = std::uint32_t;

/// What is known of a set.
struct Search {
  std::int64_t numel = 0, wanted = 0;  // over all ranks
  Key low = 0, high = ~Key{0};         // where the k-th largest is looked for
  std::int64_t above = 0;              // values above `high`, over all ranks
  std::vector<Key> inside;             // this rank's, from `low` to `high`
  Key prefix = 0, prefix_mask = 0;     // as far as its digits are known
  std::int64_t rank_in_prefix = 0;     // it is the rank-th largest of those with that prefix, from 1 on
  Key found = 0;
  bool done() const { return wanted == 0; }
};

class Selection {
 public:
  Selection(const std::vector<SelectionPart>& parts, const std::vector<std::uint64_t>& k, Communicator* ranks,
            const std::string& step)
      : parts_(parts), searches_(k.size()), ranks_(ranks), step_(step) {
    for (std::size_t s = 0; s < k.size(); ++s) searches_[s].wanted = static_cast<std::int64_t>(k[s]);
  }

  std::vector<float> run() {
    count();
    bracket();
    if (!collect()) {
      for (Search& search : searches_) search.low = 0, search.high = ~Key{0};
      collect();
    }
    for (std::size_t digit = 0; digit < kShifts.size(); ++digit) find_digit(digit);
    std::vector<float> thresholds;
    for (Search& search : searches_) {
      search.found = search.prefix;
      thresholds.push_back(search.done() ? std::numeric_limits<float>::infinity() : selection_value(search.found));
    }
    mark();
    return thresholds;
  }

 private:
  void add_up(const char* what, const at::Tensor& numbers) {
    if (ranks_ != nullptr) ranks_->all_reduce_exact(step_ + ", " + what, numbers);
  }

  void count() {
    const at::Tensor numels = host_zeros({static_cast<std::int64_t>(searches_.size())}, at::kLong);
    auto* numel = numels.mutable_data_ptr<std::int64_t>();
    for (const SelectionPart& part : parts_) numel[part.set] += part.numel;
    add_up("values of selections", numels);
    for (std::size_t s = 0; s < searches_.size(); ++s) {
      Search& search = searches_[s];
      search.numel = search.rank_in_prefix = numel[s];
      if (search.wanted <= search.numel) continue;
      throw RuntimeFault("select_largest: the " + std::to_string(search.wanted) + "-th largest of set " +
                         std::to_string(s) + " is asked for, which has " + std::to_string(search.numel) + " values.");
    }
  }

  /// Samples of all ranks tell about where the k-th largest is.
  void bracket() {
    const auto sets = static_cast<std::int64_t>(searches_.size());
    if (std::none_of(searches_.begin(), searches_.end(), [](const Search& one) { return one.numel >= kSmallest; })) {
      return;
    }
    const int count = ranks_ != nullptr ? ranks_->size() : 1, own = ranks_ != nullptr ? ranks_->rank() : 0;
    std::vector<at::Tensor> samples;
    for (int rank = 0; rank < count; ++rank) samples.push_back(host_empty({sets * kSamples}, at::kLong));
    fill_samples(samples[static_cast<std::size_t>(own)].mutable_data_ptr<std::int64_t>());
    if (ranks_ != nullptr) ranks_->all_gather(step_ + ", samples of selections", samples);
    for (std::size_t s = 0; s < searches_.size(); ++s) {
      std::vector<Key> keys;
      for (const at::Tensor& of_rank : samples) {
        const auto* from = of_rank.const_data_ptr<std::int64_t>() + static_cast<std::int64_t>(s) * kSamples;
        for (std::int64_t i = 0; i < kSamples; ++i) {
          if (from[i] >= 0) keys.push_back(static_cast<Key>(from[i]));
        }
      }
      if (searches_[s].numel >= kSmallest && !searches_[s].done()) set_bracket(searches_[s], keys);
    }
  }

  /// -1 for those that a rank has no values for. Ranks with more values than others give as many samples: the bracket
  /// is a guess, which collect() checks.
  void fill_samples(std::int64_t* to) const {
    std::fill_n(to, static_cast<std::int64_t>(searches_.size()) * kSamples, -1);
    std::vector<std::int64_t> here(searches_.size()), seen(searches_.size()), given(searches_.size());
    for (const SelectionPart& part : parts_) here[part.set] += part.numel;
    for (const SelectionPart& part : parts_) {
      const std::size_t s = part.set;
      const std::int64_t stride = std::max<std::int64_t>(here[s] / kSamples, 1);
      for (std::int64_t at = (stride - seen[s] % stride) % stride; at < part.numel && given[s] < kSamples;
           at += stride) {
        to[static_cast<std::int64_t>(s) * kSamples + given[s]++] = selection_key(part.values[at]);
      }
      seen[s] += part.numel;
    }
  }

  static void set_bracket(Search& search, std::vector<Key>& keys) {
    std::sort(keys.begin(), keys.end(), std::greater<>());
    const double share = static_cast<double>(search.wanted) / static_cast<double>(search.numel);
    const auto n = static_cast<double>(keys.size());
    const double middle = share * n, margin = kDeviations * std::sqrt(n * share * (1 - share)) + 4;
    if (middle - margin >= 0) search.high = keys[static_cast<std::size_t>(middle - margin)];
    if (middle + margin < n) search.low = keys[static_cast<std::size_t>(middle + margin)];
  }

  /// Takes the values inside of the brackets, and counts those above; false: some bracket has missed.
  bool collect() {
    const auto sets = static_cast<std::int64_t>(searches_.size());
    const at::Tensor counts = host_zeros({2, sets}, at::kLong);
    auto *above = counts.mutable_data_ptr<std::int64_t>(), *inside = above + sets;
    for (Search& search : searches_) search.inside.clear();
    for (const SelectionPart& part : parts_) {
      Search& search = searches_[part.set];
      if (!search.done()) above[part.set] += collect(part, search);
    }
    for (std::size_t s = 0; s < searches_.size(); ++s)
      inside[s] = static_cast<std::int64_t>(searches_[s].inside.size());
    add_up("brackets of selections", counts);
    bool all = true;
    for (std::size_t s = 0; s < searches_.size(); ++s) {
      Search& search = searches_[s];
      search.above = above[s];
      search.rank_in_prefix = search.wanted - above[s];
      all = all && (search.done() || (search.rank_in_prefix >= 1 && search.rank_in_prefix <= inside[s]));
    }
    return all;
  }

  /// The values of a part inside of the bracket; returns how many are above.
  static std::int64_t collect(const SelectionPart& part, Search& search) {
    constexpr std::int64_t kRun = 4096, kRoom = 16;
    std::vector<Key>& to = search.inside;
    std::int64_t above = 0;
    for (std::int64_t from = 0; from < part.numel; from += kRun) {
      const std::int64_t count = std::min(kRun, part.numel - from);
      const std::size_t filled = to.size();
      to.resize(filled + static_cast<std::size_t>(count + kRoom));
      const CollectedKeys found = collect_keys(part.values + from, static_cast<std::size_t>(count), search.low,
                                               search.high, to.data() + filled);
      to.resize(filled + found.inside);
      above += static_cast<std::int64_t>(found.above);
    }
    return above;
  }

  /// The next digit of each set's key: a histogram of those that begin with the digits known so far.
  void find_digit(std::size_t digit) {
    const auto sets = static_cast<std::int64_t>(searches_.size());
    const at::Tensor histograms = host_zeros({sets, static_cast<std::int64_t>(kMostBins)}, at::kLong);
    auto* all = histograms.mutable_data_ptr<std::int64_t>();
    const Key digits = (Key{1} << kBits[digit]) - 1;
    for (std::size_t s = 0; s < searches_.size(); ++s) {
      const Search& search = searches_[s];
      if (search.done()) continue;
      std::int64_t* bins = all + s * kMostBins;
      for (const Key key : search.inside) {
        if ((key & search.prefix_mask) == search.prefix) ++bins[(key >> kShifts[digit]) & digits];
      }
    }
    add_up("histograms of selections", histograms);
    for (std::size_t s = 0; s < searches_.size(); ++s) {
      Search& search = searches_[s];
      if (search.done()) continue;
      const std::int64_t* bins = all + s * kMostBins;
      Key bin = digits;
      while (bin > 0 && bins[bin] < search.rank_in_prefix) search.rank_in_prefix -= bins[bin--];
      search.prefix |= bin << kShifts[digit];
      search.prefix_mask |= digits << kShifts[digit];
    }
  }

  /// Of values equal to the threshold, rank_in_prefix are among the largest.
  void mark() {
    if (std::none_of(parts_.begin(), parts_.end(), [](const SelectionPart& part) { return part.mask != nullptr; })) {
      if (ranks_ == nullptr) return;
    }
    const int count = ranks_ != nullptr ? ranks_->size() : 1, own = ranks_ != nullptr ? ranks_->rank() : 0;
    std::vector<at::Tensor> equals;  // of each rank, a part
    for (int rank = 0; rank < count; ++rank) {
      equals.push_back(host_zeros({static_cast<std::int64_t>(parts_.size())}, at::kLong));
    }
    auto* mine = equals[static_cast<std::size_t>(own)].mutable_data_ptr<std::int64_t>();
    for (std::size_t p = 0; p < parts_.size(); ++p) mine[p] = write_mask(parts_[p]);
    if (ranks_ != nullptr) ranks_->all_gather(step_ + ", ties of selections", equals);
    std::vector<std::int64_t> left;
    for (const Search& search : searches_) left.push_back(search.rank_in_prefix);
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      std::int64_t& quota = left[parts_[p].set];
      for (int rank = 0; rank < count; ++rank) {
        const std::int64_t has = equals[static_cast<std::size_t>(rank)].const_data_ptr<std::int64_t>()[p];
        if (rank == own && has > quota) unmark_ties(parts_[p], std::max<std::int64_t>(quota, 0));
        quota -= has;
      }
    }
  }

  /// Marks the values of a part from its set's threshold on; returns how many are equal to it.
  std::int64_t write_mask(const SelectionPart& part) const {
    const Search& search = searches_[part.set];
    if (search.done()) {
      if (part.mask != nullptr) std::fill_n(part.mask, part.numel, std::uint8_t{0});
      return 0;
    }
    const auto count = static_cast<std::size_t>(part.numel);
    return static_cast<std::int64_t>(mask_from(part.values, count, selection_value(search.found), part.mask));
  }

  /// Takes the marks of all values equal to the threshold but the first `ties`.
  void unmark_ties(const SelectionPart& part, std::int64_t ties) const {
    if (part.mask == nullptr) return;
    const float threshold = selection_value(searches_[part.set].found);
    for (std::int64_t i = 0; i < part.numel; ++i) {
      if (part.values[i] == threshold && ties-- <= 0) part.mask[i] = 0;
    }
  }

  const std::vector<SelectionPart>& parts_;
  std::vector<Search> searches_;
  Communicator* ranks_;
  const std::string& step_;
};

}  // namespace

std::vector<float> select_largest(const std::vector<SelectionPart>& parts, const std::vector<std::uint64_t>& k,
                                  Communicator* ranks, const std::string& step) {
  return Selection(parts, k, ranks, step).run();
}

}  // namespace capstan
