// What optimizers with the trait own_communication must keep to, tried with ranks as threads.

#include <memory>
#include <optional>

#include "sdk/conformance/optimizer_under_test.hpp"
#include "sdk/conformance/rank_group.hpp"

namespace capstan::conformance {
namespace {

constexpr std::uint32_t kRanks = 3;
constexpr int kUpdates = 12;
constexpr std::size_t kLengths[] = {203, 1, 64};

/// Once as it is by default, and once with every count as small as it may be: stages that begin after some thousands
/// of updates begin at once.
std::vector<Json> param_sets(const ComponentManifest& component) {
  std::vector<Json> sets = {default_params(component), default_params(component)};
  for (const KeySpec& spec : component.params) {
    if (spec.type == KeySpec::Type::kInteger && spec.minimum && !spec.exclusive_minimum) {
      sets[1][spec.name] = static_cast<std::int64_t>(*spec.minimum);
    }
  }
  if (sets[0].dump() == sets[1].dump()) sets.pop_back();
  return sets;
}

/// One rank: its optimizer, its slots, gradients from a seed.
class Rank {
 public:
  Rank(const Context& context, const ComponentManifest& component, const Json& params, RankGroup& group,
       std::uint32_t index)
      : context_(context),
        seat_{&group, index},
        optimizer(
            context, component, params, [this](capstan_host& host) { RankGroup::lend(host, seat_); }, kRanks) {
    auto random = context.random();
    for (const std::size_t length : kLengths) {
      pieces_.push_back(std::make_unique<Piece>(component, optimizer.numbers, "p" + std::to_string(pieces_.size()),
                                                random_values(random, length)));
    }
  }

  void update(int t) {
    const bool local = optimizer.wants_local_gradients();
    for (std::size_t k = 0; k < pieces_.size(); ++k) {
      std::vector<std::vector<float>> all;
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
        std::mt19937_64 random(context_.seed + 1000 * static_cast<std::uint64_t>(t) + 100 * k + rank);
        all.push_back(random_values(random, kLengths[k]));
      }
      if (!local) {
        for (std::size_t i = 0; i < kLengths[k]; ++i) all[seat_.rank][i] = (all[0][i] + all[1][i] + all[2][i]) / kRanks;
      }
      pieces_[k]->set_grad(all[seat_.rank]);
    }
    optimizer.update(slots());
  }
  void synchronize() { optimizer.synchronize(slots()); }
  /// The same run, resumed in this new one: tensors that are saved, and what save() wrote.
  void resume(Rank& other, int updates) {
    for (std::size_t k = 0; k < pieces_.size(); ++k) pieces_[k]->copy_saved_from(*other.pieces_[k], optimizer.manifest);
    optimizer.make_model_states(slots());
    for (std::size_t i = 0; i < optimizer.model_states.size(); ++i) {
      optimizer.model_states[i].copy_(other.optimizer.model_states[i]);
    }
    optimizer.load(other.optimizer.save(), updates);
  }

  std::vector<std::vector<float>> params() const {
    std::vector<std::vector<float>> all;
    for (const auto& piece : pieces_) all.push_back(piece->param());
    return all;
  }

 private:
  std::vector<Piece*> slots() const {
    std::vector<Piece*> all;
    for (const auto& piece : pieces_) all.push_back(piece.get());
    return all;
  }

  const Context& context_;
  RankGroup::Seat seat_;
  std::vector<std::unique_ptr<Piece>> pieces_;

 public:
  OptimizerUnderTest optimizer;
};

void check_ranks_agree(const Context& context, const ComponentManifest& component) {
  for (const Json& params : param_sets(component)) {
    RankGroup group(kRanks);
    std::vector<std::vector<std::vector<float>>> ends(kRanks);
    group.run([&](std::uint32_t index) {
      Rank rank(context, component, params, group, index);
      for (int t = 0; t < kUpdates; ++t) rank.update(t);
      rank.synchronize();
      ends[index] = rank.params();
    });
    for (const auto& end : ends) {
      expect(end == ends[0], "after " + std::to_string(kUpdates) +
                                 " updates, and synchronize where it has one, the ranks' parameters differ, with " +
                                 params.dump() + ".");
    }
  }
}

void check_gradient_mode(const Context& context, const ComponentManifest& component) {
  for (const Json& params : param_sets(component)) {
    RankGroup group(kRanks);
    std::vector<std::vector<bool>> asked(kRanks);
    group.run([&](std::uint32_t index) {
      Rank rank(context, component, params, group, index);
      for (int t = 0; t < kUpdates; ++t) {
        const bool local = rank.optimizer.wants_local_gradients();
        asked[index].push_back(local);
        expect(rank.optimizer.wants_local_gradients() == local,
               "asked twice about update " + std::to_string(t) + ", gradient_mode gives two answers.");
        rank.update(t);
      }
    });
    for (const auto& answers : asked) {
      expect(answers == asked[0],
             "gradient_mode gives different answers on different ranks, with " + params.dump() + ".");
    }
  }
}

void check_ranks_resume(const Context& context, const ComponentManifest& component) {
  for (const Json& params : param_sets(component)) {
    RankGroup group(kRanks);
    group.run([&](std::uint32_t index) {
      Rank straight(context, component, params, group, index);
      Rank resumed(context, component, params, group, index);
      for (int t = 0; t < kUpdates; ++t) straight.update(t);
      straight.synchronize();
      resumed.resume(straight, kUpdates);
      for (int t = kUpdates; t < 2 * kUpdates; ++t) {
        straight.update(t);
        resumed.update(t);
        expect(straight.params() == resumed.params(),
               "rank " + std::to_string(index) + ": saved and loaded, a run goes another way at update " +
                   std::to_string(t) + ", with " + params.dump() +
                   ". Keep what must last in the manifest's state, or in save and load.");
      }
    });
  }
}

}  // namespace

Cases rank_cases(const ComponentManifest& component) {
  if (component.kind != "optimizer" || !component.has_trait("own_communication")) return {};
  const std::string prefix = "optimizer/" + component.type + "/";
  const auto bound = [component](auto check) {
    return [component, check](const Context& context) { check(context, component); };
  };
  return {
      {prefix + "ranks_agree", "All ranks have one model when they are synchronized.", bound(check_ranks_agree)},
      {prefix + "gradient_mode", "All ranks ask for the same gradients, each time they are asked.",
       bound(check_gradient_mode)},
      {prefix + "ranks_resume", "Each rank, saved and loaded, goes on with the same bits.", bound(check_ranks_resume)},
  };
}

}  // namespace capstan::conformance
