#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "capstan/sdk/collectives.hpp"
#include "capstan/sdk/compression_plan.hpp"
#include "capstan/sdk/parallel.hpp"
#include "capstan/sdk/tensor.hpp"

/// Compressions: what stands between a parameter's master values and the copy that the model computes with, and before
/// the operators that use it. Gradients pass unchanged, from what is made to what it is made of.
///
///   class LogScale {
///    public:
///     LogScale(const capstan::sdk::Host& host, const capstan::sdk::Params& params);
///     capstan::sdk::CompressionPlan plan(const capstan::sdk::ModelTable& model);  // what it acts on; once, first
///     // All that follows is optional, as far as the plan does not need it.
///     bool active(std::int64_t updates);  // whether it acts once so many updates are done; pure
///     // parameters: values from values, piece by piece; measure() gives the numbers of a round, segment by segment
///     void measure(const capstan::sdk::CompressedPiece& piece, unsigned round, double* partials);
///     void transform(const capstan::sdk::CompressedPiece& piece, std::int64_t updates, std::span<float> values);
///     void encode(const capstan::sdk::CompressedPiece& piece, std::int64_t updates,
///                 const capstan::sdk::Codes& codes);
///     // where the bits of codes change as training goes on: how many after so many updates, 0 for none
///     int code_bits(std::string_view parameter, std::int64_t updates);
///     // operands: the input of the operator that uses a planned module's weight
///     void operand(std::string_view module, capstan_tensor input, std::int64_t updates, bool training,
///                  capstan_tensor out);
///     void settle(std::int64_t updates);  // after the micro-batches of a step, on all ranks; or, to talk to them:
///     void settle(std::int64_t updates, const capstan::sdk::Collectives& ranks);
///     // states, which the engine keeps: made before forward, after each update; see CompressionPlan::State
///     void prepare(std::span<const capstan::sdk::CompressedPiece> pieces, std::int64_t updates, bool fresh,
///                  const capstan::sdk::PieceRanks& ranks);
///     // the gradient of what was transformed, before its norm is taken; that of trained states
///     void gradient(std::span<const capstan::sdk::CompressedPiece> pieces, std::int64_t updates,
///                   const capstan::sdk::PieceRanks& ranks);
///     void before_update(std::span<const capstan::sdk::CompressedPiece> pieces, std::int64_t updates,
///                        const capstan::sdk::PieceRanks& ranks);
///     // which rows, columns and channels are left of tensors once training is over
///     std::vector<capstan::sdk::KeptAxis> keep(std::span<const capstan::sdk::CompressedPiece> pieces,
///                                              std::int64_t updates);
///     // what must last, as JSON, with what was seen of a step under way
///     void save(const capstan::sdk::Sink& sink);
///     void load(const capstan::sdk::Document& saved);
///   };
///   CAPSTAN_PLUGIN(&capstan::sdk::compression<LogScale, "log_scale">)
///
/// Everything runs on the engine's thread. The engine cuts parameters into pieces at multiples of 32,768 elements, as
/// it likes: what is made of an element may depend on the element, its index and the statistics of its group alone.
namespace capstan::sdk {

/// Elements of a parameter. Valid during the call.
class CompressedPiece {
 public:
  static constexpr std::uint64_t kBlock = 32768;

  explicit CompressedPiece(const capstan_compressed* raw) : raw_(raw) {
    if (raw->input == nullptr) return;  // keep() needs no elements
    if (!on_cpu(raw->input)) throw Error("works in host memory; parameter '" + std::string(name()) + "' is elsewhere");
    void* data = nullptr;
    detail::check_torch(aoti_torch_get_data_ptr(raw->input, &data), "get_data_ptr");
    input_ = static_cast<const float*>(data);
  }

  std::string_view name() const { return to_view(raw_->name); }
  std::span<const std::int64_t> full_shape() const { return {raw_->full_shape, raw_->full_dims}; }
  /// The values to compress: masters, or what the compression before this one makes of them.
  std::span<const float> input() const { return {input_, raw_->numel}; }
  std::uint64_t offset() const { return raw_->offset; }  // of input()[0] in the flattened parameter
  std::uint64_t full_numel() const { return raw_->full_numel; }
  std::uint64_t groups() const { return raw_->groups; }
  std::uint64_t group_size() const { return raw_->full_numel / raw_->groups; }

  /// Calls use(group, begin, end) for each group that has elements here: the elements [begin, end) of input(). The
  /// first is group 0, whatever its index in the parameter.
  template <class Use>
  void for_each_group(Use&& use) const {
    const std::uint64_t first = offset() / group_size(), end = offset() + raw_->numel;
    for (std::uint64_t group = first, at = offset(); at < end; ++group) {
      const std::uint64_t stop = std::min((group + 1) * group_size(), end);
      use(static_cast<std::size_t>(group - first), static_cast<std::size_t>(at - offset()),
          static_cast<std::size_t>(stop - offset()));
      at = stop;
    }
  }
  /// Groups that have elements here.
  std::size_t group_count() const {
    return raw_->numel == 0 ? 0 : (offset() + raw_->numel - 1) / group_size() - offset() / group_size() + 1;
  }

  /// Calls use(segment, group, begin, end) for each segment: elements [begin, end) of input() that lie in one group and
  /// in one run of 32,768 elements.
  template <class Use>
  void for_each_segment(Use&& use) const {
    std::size_t segment = 0;
    for_each_group([&](std::size_t group, std::size_t begin, std::size_t end) {
      for (std::uint64_t at = begin; at < end;) {
        const std::uint64_t stop = std::min<std::uint64_t>(((offset() + at) / kBlock + 1) * kBlock - offset(), end);
        use(segment++, group, static_cast<std::size_t>(at), static_cast<std::size_t>(stop));
        at = stop;
      }
    });
  }
  /// The same on LibTorch's threads, in any order. `use` must not throw.
  template <class Use>
  void parallel_segments(Use&& use) const {
    const auto blocks = static_cast<std::int64_t>((raw_->numel + kBlock - 1) / kBlock);
    parallel_for(0, blocks, 1, [&](std::int64_t from, std::int64_t to) {
      const std::uint64_t begin = static_cast<std::uint64_t>(from) * kBlock;
      const std::uint64_t end = std::min(static_cast<std::uint64_t>(to) * kBlock, raw_->numel);
      const std::uint64_t first = offset() / group_size();
      std::size_t segment = segments_before(begin);
      std::uint64_t group = (offset() + begin) / group_size();
      std::uint64_t group_end = (group + 1) * group_size() - offset(), block_end = begin + kBlock;
      for (std::uint64_t at = begin; at < end;) {
        const std::uint64_t stop = std::min({group_end, block_end, end});
        use(segment++, static_cast<std::size_t>(group - first), static_cast<std::size_t>(at),
            static_cast<std::size_t>(stop));
        at = stop;
        if (at == group_end) {
          ++group;
          group_end += group_size();
        }
        if (at == block_end) block_end += kBlock;
      }
    });
  }
  std::size_t segment_count() const {
    std::size_t count = 0;
    for_each_group([&](std::size_t, std::size_t begin, std::size_t end) {
      if (begin < end) count += (offset() + end - 1) / kBlock - (offset() + begin) / kBlock + 1;
    });
    return count;
  }

  /// The statistics of a group: `numbers` a group, those of round 0 first.
  const double* statistics(std::size_t group, std::size_t numbers) const { return raw_->statistics + group * numbers; }

  /// A state of the plan, by its index there: of the elements here, or whole. Empty where it is not shown.
  /// Throws Error where the engine's plugin ABI is older.
  template <class T>
  std::span<T> state(std::size_t index) const {
    return index < raw_->state_count ? span_of<T>(raw_->states[index]) : std::span<T>();
  }
  /// In prepare(): the masters.
  std::span<float> master() const { return span_of<float>(raw_->master); }
  /// In gradient() and before_update(): gradient() * grad_scale() is the mean gradient of the elements here.
  std::span<float> gradient() const { return span_of<float>(raw_->grad); }
  double grad_scale() const { return raw_->grad_scale; }
  /// In gradient(): where the gradient of a trained state goes.
  std::span<float> state_gradient(std::size_t index) const {
    return raw_->state_grads != nullptr ? span_of<float>(raw_->state_grads[index]) : std::span<float>();
  }
  /// Calls use(segment, group, begin, end) for the segments of groups of `size` elements, as PieceRanks::sum_groups()
  /// wants them: elements [begin, end) of input() in the group of that index in the parameter.
  template <class Use>
  void for_each_segment_of(std::uint64_t size, Use&& use) const {
    std::size_t segment = 0;
    const std::uint64_t end = offset() + raw_->numel;
    for (std::uint64_t at = offset(); at < end;) {
      const std::uint64_t stop = std::min({(at / size + 1) * size, (at / kBlock + 1) * kBlock, end});
      use(segment++, at / size, static_cast<std::size_t>(at - offset()), static_cast<std::size_t>(stop - offset()));
      at = stop;
    }
  }
  const capstan_compressed* raw() const { return raw_; }

  /// Throws "parameter '<name>': <text>".
  [[noreturn]] void fail(const std::string& text) const {
    throw Error("parameter '" + std::string(name()) + "': " + text);
  }

 private:
  /// Segments of the elements before `at`, a multiple of kBlock.
  std::size_t segments_before(std::uint64_t at) const {
    if (at == 0) return 0;
    const auto inside = [&](std::uint64_t step) { return (offset() + at - 1) / step - offset() / step; };
    const std::uint64_t both = kBlock / std::gcd(kBlock, group_size());  // groups after which a block ends as well
    const std::uint64_t twice = both > full_numel() / group_size() ? 0 : inside(both * group_size());
    return 1 + inside(kBlock) + inside(group_size()) - twice;
  }

  template <class T>
  static std::span<T> span_of(capstan_tensor tensor) {
    if (tensor == nullptr) return {};
    void* data = nullptr;
    detail::check_torch(aoti_torch_get_data_ptr(tensor, &data), "get_data_ptr");
    return {static_cast<T*>(data), static_cast<std::size_t>(numel_of(tensor))};
  }

  const capstan_compressed* raw_;
  const float* input_ = nullptr;
};

/// Which indices of an axis are left of a tensor once training is over.
struct KeptAxis {
  std::string tensor;  // "blocks.0.fc.weight", or a buffer
  std::int64_t axis = 0, of = 0;
  std::vector<std::int64_t> kept;  // rising
};

/// What the ranks find out together about their pieces, within prepare(), gradient() and before_update().
/// Every rank makes the same calls in the same order. Throws the host's text when another process is gone.
class PieceRanks {
 public:
  PieceRanks(const capstan_host* host, capstan_error* error) : host_(host), error_(error) {}

  const Collectives collectives() const { return {host_, error_}; }

  /// Adds up partials[i], a number for each segment of piece i that for_each_segment_of(group_sizes[i]) has: the sums
  /// of all groups of its parameter, the same bits on all ranks and however parameters are cut.
  std::vector<std::vector<double>> sum_groups(std::span<const CompressedPiece> pieces,
                                              const std::vector<std::uint64_t>& group_sizes,
                                              const std::vector<std::vector<double>>& partials) const {
    std::vector<const capstan_compressed*> raw;
    std::vector<const double*> from;
    std::vector<std::vector<double>> totals;
    std::vector<double*> to;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      raw.push_back(pieces[i].raw());
      from.push_back(partials[i].data());
      totals.emplace_back(pieces[i].full_numel() / group_sizes[i]);
    }
    for (std::vector<double>& one : totals) to.push_back(one.data());
    check(host_->sum_groups(host_->ctx, raw.data(), raw.size(), group_sizes.data(), from.data(), to.data(), error_));
    return totals;
  }

  /// This rank's part of a set of values that lies on the ranks as pieces do.
  struct Part {
    std::span<const float> values;
    std::uint32_t set = 0;
    std::span<std::uint8_t> mask;  // as many: becomes 1 for the largest of the set; empty: not wanted
  };
  /// The k[s]-th largest value of each set, exact; infinity for k[s] = 0. Of equal values the first ones count.
  std::vector<float> select_largest(const std::vector<Part>& parts, const std::vector<std::uint64_t>& k) const {
    std::vector<std::unique_ptr<BorrowedTensor>> tensors;
    std::vector<capstan_tensor> values, masks;
    std::vector<std::uint32_t> sets;
    for (const Part& part : parts) {
      values.push_back(tensors.emplace_back(std::make_unique<BorrowedTensor>(part.values))->get());
      const bool wanted = part.mask.size() == part.values.size();
      masks.push_back(wanted ? tensors.emplace_back(std::make_unique<BorrowedTensor>(part.mask))->get() : nullptr);
      sets.push_back(part.set);
    }
    std::vector<float> thresholds(k.size());
    check(host_->select_largest(host_->ctx, values.data(), sets.data(), parts.size(), k.data(), k.size(),
                                thresholds.data(), masks.data(), error_));
    return thresholds;
  }

  /// What all ranks have of a parameter's elements, of which `part` are the piece's.
  template <class T>
  std::vector<T> gather(const CompressedPiece& piece, std::span<const T> part) const {
    std::vector<T> whole(piece.full_numel());
    const BorrowedTensor from(part), to{std::span<T>(whole)};
    check(host_->gather_piece(host_->ctx, piece.raw(), from.get(), to.get(), error_));
    return whole;
  }

 private:
  const capstan_host* host_;
  capstan_error* error_;
};

/// Where encode() writes: value = (code - zero point) * scale.
struct Codes {
  std::span<std::int8_t> codes;         // one an element
  std::span<float> scales;              // one a group
  std::span<std::int32_t> zero_points;  // one a group, 0 at first
};

template <class T>
struct CompressionThunks {
  using Self = Instance<T>;

  static constexpr bool kActive = requires(T & t) {
    { t.active(std::int64_t{}) } -> std::convertible_to<bool>;
  };
  static constexpr bool kMeasures = requires(T & t, const CompressedPiece& piece, double* to) {
    t.measure(piece, 0u, to);
  };
  static constexpr bool kTransforms = requires(T & t, const CompressedPiece& piece, std::span<float> to) {
    t.transform(piece, std::int64_t{}, to);
  };
  static constexpr bool kEncodes = requires(T & t, const CompressedPiece& piece, const Codes& to) {
    t.encode(piece, std::int64_t{}, to);
  };
  static constexpr bool kChangesBits = requires(T & t) {
    { t.code_bits(std::string_view(), std::int64_t{}) } -> std::convertible_to<int>;
  };
  static constexpr bool kOperands = requires(T & t, capstan_tensor h) {
    t.operand(std::string_view(), h, std::int64_t{}, true, h);
  };
  static constexpr bool kSettlesAlone = requires(T & t) { t.settle(std::int64_t{}); };
  static constexpr bool kSettlesTogether = requires(T & t, const Collectives& ranks) {
    t.settle(std::int64_t{}, ranks);
  };
  static constexpr bool kSettles = kSettlesAlone || kSettlesTogether;
  using Pieces = std::span<const CompressedPiece>;
  static constexpr bool kPrepares = requires(T & t, Pieces pieces, const PieceRanks& ranks) {
    t.prepare(pieces, std::int64_t{}, true, ranks);
  };
  static constexpr bool kChangesGradients = requires(T & t, Pieces pieces, const PieceRanks& ranks) {
    t.gradient(pieces, std::int64_t{}, ranks);
  };
  static constexpr bool kSeesUpdates = requires(T & t, Pieces pieces, const PieceRanks& ranks) {
    t.before_update(pieces, std::int64_t{}, ranks);
  };
  static constexpr bool kKeeps = requires(T & t, Pieces pieces) {
    { t.keep(pieces, std::int64_t{}) } -> std::same_as<std::vector<KeptAxis>>;
  };
  static constexpr bool kSaves = requires(T & t, const Sink& sink) { t.save(sink); };
  static constexpr bool kLoads = requires(T & t, const Document& saved) { t.load(saved); };
  static_assert(kSaves == kLoads, "save and load belong together.");
  static_assert(kEncodes || !kChangesBits, "code_bits needs encode.");

  template <class Body>
  static capstan_status call(void* self, capstan_error* error, Body&& body) {
    auto& instance = *static_cast<Self*>(self);
    return guarded(instance.host, error, [&] { body(instance.object, instance.host); });
  }

  template <class Number>
  static Number* data_of(capstan_tensor tensor) {
    void* data = nullptr;
    detail::check_torch(aoti_torch_get_data_ptr(tensor, &data), "get_data_ptr");
    return static_cast<Number*>(data);
  }

  static capstan_status plan(void* self, capstan_str model, capstan_sink* sink, capstan_error* error) {
    return call(self, error, [&](T& object, const capstan_host* host) {
      Sink(host, sink).write(object.plan(ModelTable::read(Document(host, model, error))).json());
    });
  }
  static int active(void* self, std::int64_t updates) {
    if constexpr (kActive) return static_cast<Self*>(self)->object.active(updates) ? 1 : 0;
    return 1;
  }
  static capstan_status measure(void* self, const capstan_compressed* raw, std::uint32_t round, double* partials,
                                capstan_error* error) {
    return call(self, error, [&](T& object, const capstan_host*) {
      const CompressedPiece piece(raw);
      if constexpr (kMeasures) object.measure(piece, round, partials);
    });
  }
  static capstan_status transform(void* self, const capstan_compressed* raw, std::int64_t updates,
                                  capstan_tensor values, capstan_error* error) {
    return call(self, error, [&](T& object, const capstan_host*) {
      const CompressedPiece piece(raw);
      if constexpr (kTransforms) object.transform(piece, updates, {data_of<float>(values), piece.input().size()});
    });
  }
  static Codes codes_of(const CompressedPiece& piece, capstan_tensor codes, capstan_tensor scales,
                        capstan_tensor zero_points) {
    const std::size_t groups = piece.group_count();
    const Codes to{{data_of<std::int8_t>(codes), piece.input().size()},
                   {data_of<float>(scales), groups},
                   {data_of<std::int32_t>(zero_points), groups}};
    std::fill(to.zero_points.begin(), to.zero_points.end(), 0);
    return to;
  }
  static capstan_status encode(void* self, const capstan_compressed* raw, std::int64_t updates, capstan_tensor codes,
                               capstan_tensor scales, capstan_tensor zero_points, capstan_error* error) {
    return call(self, error, [&](T& object, const capstan_host*) {
      const CompressedPiece piece(raw);
      if constexpr (kEncodes) object.encode(piece, updates, codes_of(piece, codes, scales, zero_points));
    });
  }
  static int code_bits(void* self, capstan_str parameter, std::int64_t updates) {
    if constexpr (kChangesBits) return static_cast<Self*>(self)->object.code_bits(to_view(parameter), updates);
    return 0;
  }
  static capstan_status operand(void* self, capstan_str module, capstan_tensor input, std::int64_t updates,
                                int training, capstan_tensor out, capstan_error* error) {
    return call(self, error, [&](T& object, const capstan_host*) {
      if constexpr (kOperands) object.operand(to_view(module), input, updates, training != 0, out);
    });
  }
  static capstan_status settle(void* self, std::int64_t updates, capstan_error* error) {
    return call(self, error, [&](T& object, const capstan_host* host) {
      if constexpr (kSettlesTogether) {
        object.settle(updates, Collectives(host, error));
      } else if constexpr (kSettlesAlone) {
        object.settle(updates);
      }
    });
  }

  static std::vector<CompressedPiece> pieces_of(const capstan_compressed* const* raw, std::size_t count) {
    std::vector<CompressedPiece> pieces;
    for (std::size_t i = 0; i < count; ++i) pieces.emplace_back(raw[i]);
    return pieces;
  }
  static capstan_status prepare(void* self, const capstan_compressed* const* raw, std::size_t count,
                                std::int64_t updates, int fresh, capstan_error* error) {
    return call(self, error, [&](T& object, const capstan_host* host) {
      if constexpr (kPrepares) object.prepare(pieces_of(raw, count), updates, fresh != 0, PieceRanks(host, error));
    });
  }
  static capstan_status gradient(void* self, const capstan_compressed* const* raw, std::size_t count,
                                 std::int64_t updates, capstan_error* error) {
    return call(self, error, [&](T& object, const capstan_host* host) {
      if constexpr (kChangesGradients) object.gradient(pieces_of(raw, count), updates, PieceRanks(host, error));
    });
  }
  static capstan_status before_update(void* self, const capstan_compressed* const* raw, std::size_t count,
                                      std::int64_t updates, capstan_error* error) {
    return call(self, error, [&](T& object, const capstan_host* host) {
      if constexpr (kSeesUpdates) object.before_update(pieces_of(raw, count), updates, PieceRanks(host, error));
    });
  }
  static capstan_status keep(void* self, const capstan_compressed* const* raw, std::size_t count, std::int64_t updates,
                             capstan_sink* sink, capstan_error* error) {
    return call(self, error, [&](T& object, const capstan_host* host) {
      if constexpr (kKeeps) Sink(host, sink).write(kept_json(object.keep(pieces_of(raw, count), updates)));
    });
  }
  static std::string kept_json(const std::vector<KeptAxis>& axes) {
    std::string text = "{\"tensors\": [";
    for (const KeptAxis& one : axes) {
      text += (&one == axes.data() ? "" : ", ") + ("{\"name\": " + CompressionPlan::quoted(one.tensor));
      text += ", \"axis\": " + std::to_string(one.axis) + ", \"of\": " + std::to_string(one.of) + ", \"kept\": [";
      for (const std::int64_t& at : one.kept) text += (&at == one.kept.data() ? "" : ", ") + std::to_string(at);
      text += "]}";
    }
    return text + "]}";
  }

  // SavedCalls of a class that has neither would not compile.
  static constexpr auto save_call() {
    if constexpr (kSaves) {
      return &SavedCalls<T>::save;
    } else {
      return nullptr;
    }
  }
  static constexpr auto load_call() {
    if constexpr (kLoads) {
      return &SavedCalls<T>::load;
    } else {
      return nullptr;
    }
  }

  static constexpr capstan_compression kVtable = {sizeof(capstan_compression),
                                                  &plan,
                                                  kActive ? &active : nullptr,
                                                  kMeasures ? &measure : nullptr,
                                                  kTransforms ? &transform : nullptr,
                                                  kEncodes ? &encode : nullptr,
                                                  kOperands ? &operand : nullptr,
                                                  kSettles ? &settle : nullptr,
                                                  save_call(),
                                                  load_call(),
                                                  kPrepares ? &prepare : nullptr,
                                                  kChangesGradients ? &gradient : nullptr,
                                                  kSeesUpdates ? &before_update : nullptr,
                                                  kKeeps ? &keep : nullptr,
                                                  kChangesBits ? &code_bits : nullptr};
};

/// The descriptor of compression class T.
template <class T, Literal Type>
inline constexpr capstan_component compression = describe<T, "compression", Type>(&CompressionThunks<T>::kVtable);

}  // namespace capstan::sdk
