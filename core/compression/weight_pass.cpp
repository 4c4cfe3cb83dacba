// How compressions make compute copies of masters: measured, joined over the ranks, transformed.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "core/compression/compressions.hpp"
#include "core/errors.hpp"
#include "core/host_tensor.hpp"
#include "core/memory/tensor_handle.hpp"
#include "core/registry/plugin_call.hpp"

namespace capstan {
namespace {

/// 16-bit copies are made of fp32 values in runs of so many elements, which the caches hold.
constexpr std::int64_t kChunk = 8 * Partition::kBlock;

std::vector<Range> ranges_of_ranks(const CompressedPart& part) {
  return part.of_ranks.empty() ? std::vector<Range>{part.range} : part.of_ranks;
}

/// Throws RuntimeFault for a value that is not finite, which no code stands for.
void check_finite(const std::string& parameter, const at::Tensor& master) {
  const auto* values = master.const_data_ptr<float>();
  const auto* end = values + master.numel();
  const auto* found = std::find_if(values, end, [](float value) { return !std::isfinite(value); });
  if (found == end) return;
  throw RuntimeFault("parameter '" + parameter + "': element " + std::to_string(found - values) + " is " +
                     (std::isnan(*found) ? "NaN" : "infinite") +
                     ", and no code stands for it. Export a checkpoint of before the values were lost, or without "
                     "--compressed.");
}

}  // namespace

/// One compression's way through the parts.
class Compressions::Pass {
 public:
  /// A part, and what the compression before this one made of it.
  struct Work {
    const CompressedPart* part;
    const CompressionPlan::Parameter* plan;
    at::Tensor input;
    std::vector<double> statistics;  // of the groups that the part meets
  };

  Pass(const Member& member, std::vector<Work> work) : member_(member), work_(std::move(work)) {}
  std::vector<Work>& work() { return work_; }

  void measure(const std::string& step, Communicator* ranks) {
    std::size_t rounds = 0;
    for (Work& one : work_) {
      rounds = std::max(rounds, one.plan->measures.size());
      const auto groups = static_cast<std::size_t>(one.plan->layout.groups_in(one.part->range));
      one.statistics.assign(groups * one.plan->numbers(), 0.0);
    }
    for (std::size_t round = 0; round < rounds; ++round) {
      Exchange exchange;
      for (Work& one : work_) {
        if (round < one.plan->measures.size()) measure(one, round, exchange);
      }
      if (ranks != nullptr) share(step, round, *ranks, exchange);
    }
  }

  void transform(const Work& one, const Range& range, const at::Tensor& input, std::int64_t updates,
                 const at::Tensor& values) const {
    if (range.numel == 0) return;
    const Member::Shown shown = shown_of(one, range);
    const capstan_compressed piece = piece_of(one, range, input, &shown);
    call("transform", one, [&](capstan_error* error) {
      return member_.table()->transform(member_.self(), &piece, updates, handle_of(values), error);
    });
  }

  /// The codes of the values that transform() gives after so many updates.
  WeightCodes encode(const Work& one, std::int64_t updates) const {
    const auto groups = one.plan->layout.groups_in(one.part->range);
    WeightCodes made{one.plan->layout,
                     one.plan->bits,
                     one.plan->zero_points,
                     host_empty({one.part->range.numel}, at::kChar),
                     host_empty({groups}, at::kFloat),
                     host_empty({groups}, at::kInt)};
    const Member::Shown shown = shown_of(one, one.part->range);
    const capstan_compressed piece = piece_of(one, one.part->range, one.input, &shown);
    call("encode", one, [&](capstan_error* error) {
      return member_.table()->encode(member_.self(), &piece, updates, handle_of(made.codes), handle_of(made.scales),
                                     handle_of(made.zero_points), error);
    });
    return made;
  }

  /// The scales of the values that transform() gives, where they have codes that the compute copy still tells. Before
  /// transform(), which may overwrite the input.
  std::optional<PartScales> scales(const Work& one, std::int64_t updates) const {
    const CodeFormat format{one.plan->layout.size(), one.plan->bits, one.plan->zero_points};
    if (format.bits == 0 || !format.fits(one.part->compute.scalar_type())) return std::nullopt;
    if (one.part->range.numel == 0) return PartScales{format, {}, {}};
    WeightCodes codes = encode(one, updates);
    return PartScales{format, std::move(codes.scales), std::move(codes.zero_points)};
  }

 private:
  /// What this rank tells the others: the segments of groups that cross the ends of its parts.
  using Exchange = std::vector<double>;

  template <class Call>
  void call(const char* function, const Work& one, Call&& body) const {
    call_plugin(member_.component.function(function), member_.where + ", parameter '" + one.part->name + "'",
                std::forward<Call>(body));
  }

  Member::Shown shown_of(const Work& one, const Range& range) const {
    return member_.shown(one.part->name, range.offset - one.part->range.offset, range.numel);
  }

  capstan_compressed piece_of(const Work& one, const Range& range, const at::Tensor& input,
                              const Member::Shown* shown = nullptr) const {
    const GroupLayout& layout = one.plan->layout;
    capstan_compressed piece{};
    piece.struct_size = sizeof piece;
    piece.name = as_str(one.part->name);
    piece.full_shape = one.part->shape.data();
    piece.full_dims = static_cast<std::uint32_t>(one.part->shape.size());
    piece.offset = static_cast<std::uint64_t>(range.offset);
    piece.numel = static_cast<std::uint64_t>(range.numel);
    piece.full_numel = static_cast<std::uint64_t>(layout.numel);
    piece.groups = static_cast<std::uint64_t>(layout.groups);
    piece.input = handle_of(input);
    if (shown != nullptr) {
      piece.states = shown->handles.data();
      piece.state_count = shown->handles.size();
    }
    const auto skipped = layout.first_group(range) - layout.first_group(one.part->range);
    if (!one.statistics.empty()) {
      piece.statistics = one.statistics.data() + static_cast<std::size_t>(skipped) * one.plan->numbers();
    }
    return piece;
  }

  /// Where the numbers of a round begin among those of a group.
  static std::size_t first_number(const CompressionPlan::Parameter& plan, std::size_t round) {
    std::size_t first = 0;
    for (std::size_t r = 0; r < round; ++r) first += plan.measures[r].size();
    return first;
  }

  static double* numbers_of(Work& one, std::int64_t group, std::size_t round) {
    const auto index = static_cast<std::size_t>(group - one.plan->layout.first_group(one.part->range));
    return one.statistics.data() + index * one.plan->numbers() + first_number(*one.plan, round);
  }

  void measure(Work& one, std::size_t round, Exchange& exchange) {
    const Range& range = one.part->range;
    if (range.numel == 0) return;
    const std::vector<Join>& joins = one.plan->measures[round];
    const GroupLayout& layout = one.plan->layout;
    std::vector<double> segments(static_cast<std::size_t>(layout.segments_in(range)) * joins.size());
    const capstan_compressed piece = piece_of(one, range, one.input);
    call("measure", one, [&](capstan_error* error) {
      return member_.table()->measure(member_.self(), &piece, static_cast<std::uint32_t>(round), segments.data(),
                                      error);
    });
    const std::vector<double> totals = join_segments(layout, range, joins, segments);
    const std::int64_t first = layout.first_group(range);
    for (std::size_t group = 0; group * joins.size() < totals.size(); ++group) {
      std::copy_n(totals.data() + group * joins.size(), joins.size(),
                  numbers_of(one, first + static_cast<std::int64_t>(group), round));
    }
    for (const std::int64_t group : groups_that_cross(layout, range)) {
      const Range before{range.offset, std::max<std::int64_t>(group * layout.size() - range.offset, 0)};
      const auto begin = static_cast<std::size_t>(layout.segments_in(before)) * joins.size();
      const auto count = static_cast<std::size_t>(layout.segments_in(layout.in_group(range, group))) * joins.size();
      exchange.insert(exchange.end(), segments.data() + begin, segments.data() + begin + count);
    }
  }

  /// Joins what the ranks have of the groups that lie on several of them, in the order of segments.
  void share(const std::string& step, std::size_t round, Communicator& ranks, const Exchange& mine) {
    std::vector<at::Tensor> parts;
    std::int64_t all = 0;
    for (int rank = 0; rank < ranks.size(); ++rank) {
      std::int64_t count = 0;
      for (const Work& one : work_) {
        if (round >= one.plan->measures.size()) continue;
        const Range range = ranges_of_ranks(*one.part)[static_cast<std::size_t>(rank)];
        for (const std::int64_t group : groups_that_cross(one.plan->layout, range)) {
          count += one.plan->layout.segments_in(one.plan->layout.in_group(range, group)) *
                   static_cast<std::int64_t>(one.plan->measures[round].size());
        }
      }
      all += count;
      parts.push_back(host_empty({count}, at::kDouble));
    }
    if (all == 0) return;
    at::Tensor& here = parts[static_cast<std::size_t>(ranks.rank())];
    std::copy(mine.begin(), mine.end(), here.mutable_data_ptr<double>());
    ranks.all_gather(step + ", statistics of " + member_.where, parts);

    std::vector<const double*> at;
    for (const at::Tensor& part : parts) at.push_back(part.const_data_ptr<double>());
    for (Work& one : work_) {
      if (round < one.plan->measures.size()) join_ranks(one, round, at);
    }
  }

  static void join_ranks(Work& one, std::size_t round, std::vector<const double*>& at) {
    const GroupLayout& layout = one.plan->layout;
    const std::vector<Join>& joins = one.plan->measures[round];
    const std::vector<std::int64_t> own = groups_that_cross(layout, one.part->range);
    for (const std::int64_t group : own) start(joins, numbers_of(one, group, round));
    const std::vector<Range> ranges = ranges_of_ranks(*one.part);
    // Ranks own rising ranges of a parameter.
    for (std::size_t rank = 0; rank < ranges.size(); ++rank) {
      for (const std::int64_t group : groups_that_cross(layout, ranges[rank])) {
        const bool wanted = std::find(own.begin(), own.end(), group) != own.end();
        for (std::int64_t left = layout.segments_in(layout.in_group(ranges[rank], group)); left > 0; --left) {
          if (wanted) join(joins, at[rank], numbers_of(one, group, round));
          at[rank] += joins.size();
        }
      }
    }
  }

  const Member& member_;
  std::vector<Work> work_;
};

void Compressions::fill(const std::string& step, CompressedParts& all, std::int64_t updates, bool fresh,
                        Communicator* ranks) {
  const at::NoGradGuard no_grad;
  const Asking asking(*this, all, step, ranks);
  bind(all);
  gather_trained(step, all, ranks);
  prepare(all, updates, fresh);
  std::vector<CompressedPart>& parts = all.parameters;
  for (CompressedPart& part : parts) part.scales.reset();
  std::vector<at::Tensor> values(parts.size());  // as far as compressions have come
  std::vector<const Member*> last;
  for (const CompressedPart& part : parts) last.push_back(last_acting(part.name, updates));
  for (const auto& member : members_) {
    if (!member->active(updates)) continue;
    std::vector<Pass::Work> work;
    std::vector<std::size_t> indices;
    for (std::size_t k = 0; k < parts.size(); ++k) {
      const CompressionPlan::Parameter* plan = member->find(parts[k].name);
      if (plan == nullptr) continue;
      work.push_back({&parts[k], plan, values[k].defined() ? values[k] : parts[k].master, {}});
      indices.push_back(k);
    }
    Pass pass(*member, std::move(work));
    pass.measure(step, ranks);
    for (std::size_t w = 0; w < indices.size(); ++w) {
      CompressedPart& part = parts[indices[w]];
      Pass::Work& one = pass.work()[w];
      at::Tensor& to = values[indices[w]];
      if (part.wants_scales && last[indices[w]] == member.get()) part.scales = pass.scales(one, updates);
      const bool direct = part.compute.scalar_type() == at::kFloat;
      if (direct || last[indices[w]] != member.get()) {
        if (!to.defined()) to = direct ? part.compute : host_empty({part.range.numel}, at::kFloat);
        pass.transform(one, part.range, one.input, updates, to);
        continue;
      }
      const at::Tensor chunk = host_empty({std::min(kChunk, part.range.numel)}, at::kFloat);
      for (std::int64_t at = 0; at < part.range.numel; at += kChunk) {
        const std::int64_t count = std::min(kChunk, part.range.numel - at);
        const at::Tensor made = chunk.narrow(0, 0, count);
        pass.transform(one, {part.range.offset + at, count}, one.input.narrow(0, at, count), updates, made);
        part.compute.narrow(0, at, count).copy_(made);
      }
    }
  }
  for (std::size_t k = 0; k < parts.size(); ++k) {
    if (last[k] == nullptr) parts[k].compute.copy_(parts[k].master);
  }
}

std::vector<at::Tensor> Compressions::values_before(const Member& until, const std::string& step,
                                                    CompressedParts& parts, std::int64_t updates,
                                                    Communicator* ranks) const {
  std::vector<at::Tensor> values(parts.parameters.size());
  for (const auto& member : members_) {
    if (member.get() == &until) break;
    if (!member->active(updates)) continue;
    std::vector<Pass::Work> work;
    std::vector<std::size_t> indices;
    for (std::size_t k = 0; k < parts.parameters.size(); ++k) {
      const CompressedPart& part = parts.parameters[k];
      const CompressionPlan::Parameter* plan = member->find(part.name);
      if (plan == nullptr || until.find(part.name) == nullptr || !part.gradient.defined()) continue;
      work.push_back({&part, plan, values[k].defined() ? values[k] : part.master, {}});
      indices.push_back(k);
    }
    if (work.empty()) continue;
    Pass pass(*member, std::move(work));
    pass.measure(step, ranks);
    for (std::size_t w = 0; w < indices.size(); ++w) {
      at::Tensor& to = values[indices[w]];
      if (!to.defined()) to = at::empty_like(parts.parameters[indices[w]].master);
      const Pass::Work& one = pass.work()[w];
      pass.transform(one, one.part->range, one.input, updates, to);
    }
  }
  return values;
}

at::Tensor Compressions::transformed(const std::string& parameter, const std::vector<std::int64_t>& shape,
                                     const at::Tensor& master, std::int64_t updates, const ReadState& read) const {
  const at::NoGradGuard no_grad;
  const CompressedPart part{0, parameter, shape, {0, master.numel()}, {}, master, {}};
  at::Tensor input = master;
  for (const auto& member : members_) {
    const CompressionPlan::Parameter* plan = member->find(parameter);
    if (plan == nullptr || !member->active(updates)) continue;
    Member& lender = *member;
    lender.states[parameter] = read_states(lender, parameter, /*elements=*/true, read);
    if (!plan->states_of.empty()) {
      lender.states[plan->states_of] = read_states(lender, plan->states_of, /*elements=*/false, read);
    }
    Pass pass(lender, {{&part, plan, input, {}}});
    pass.measure("values", nullptr);
    const at::Tensor made = at::empty_like(master);
    pass.transform(pass.work().front(), part.range, input, updates, made);
    lender.states.clear();
    input = made;
  }
  return input.is_same(master) ? at::Tensor() : input;
}

WeightCodes Compressions::encode(const std::string& parameter, const std::vector<std::int64_t>& shape,
                                 const at::Tensor& master, std::int64_t updates) const {
  const at::NoGradGuard no_grad;
  const Member* last = last_coder(parameter, updates);
  if (last == nullptr) {
    throw RuntimeFault("parameter '" + parameter + "': no compression that acts after " + std::to_string(updates) +
                       " updates gives codes of it.");
  }
  check_finite(parameter, master);
  const CompressedPart part{0, parameter, shape, {0, master.numel()}, {}, master, {}};
  at::Tensor input = master;
  for (const auto& member : members_) {
    const CompressionPlan::Parameter* plan = member->find(parameter);
    if (plan == nullptr || !member->active(updates)) continue;
    Pass pass(*member, {{&part, plan, input, {}}});
    pass.measure("codes", nullptr);
    if (member.get() == last) return pass.encode(pass.work().front(), updates);
    const at::Tensor made = at::empty_like(input);
    pass.transform(pass.work().front(), part.range, input, updates, made);
    input = made;
  }
  return {};  // not reached: `last` is one of the members
}

}  // namespace capstan
