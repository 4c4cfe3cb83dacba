// MoQ with the peer's own rules in the place of Capstan's: the plugin's own files, but for the period, which doubles at
// each drop, for a call before the first forward, which the peer counts, and for the noise of stochastic rounding.
#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "capstan/sdk/floats.hpp"
#include "tests/support/hash_uniform.hpp"
#include "update_quantization.hpp"

namespace capstan::compression {
namespace {

/// quantize.py: q_period <<= 1; q_period *= factor.
std::int64_t doubling(std::int64_t, std::int64_t next, std::int64_t factor) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  return next > kMost / 2 / factor ? kMost : next * 2 * factor;
}

/// The peer draws for one weight after the other, and goes on in the next call: fp16(0.5 u[k]) of the formula's values
/// u.
Noise recorded_noise(const std::vector<MovingWeight>& weights, std::size_t index, std::int64_t call, std::uint64_t) {
  std::int64_t before = 0, all = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (i < index) before += weights[i].numel;
    all += weights[i].numel;
  }
  const std::int64_t begin = (call - 1) * all + before;
  return [begin](std::int64_t first, std::span<float> out) {
    std::uint64_t state = 0xCBF29CE484222325;
    for (const char c : std::string("stoch")) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001B3;
    state ^= 0x9E3779B97F4A7C15;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::uint64_t k = static_cast<std::uint64_t>(begin + first) + i;
      const std::uint64_t z = sdk::splitmix64(state + k * 0x9E3779B97F4A7C15);
      const float u = static_cast<float>(z >> 40) * 0x1p-23f - 1;
      out[i] = sdk::from_float16(sdk::to_float16(0.5f * u));
    }
  };
}

std::int64_t calls_before_first(const sdk::Params& params) {
  // With an offset the peer counts from the update after it, as Capstan does.
  const bool at_once = shared_integer(params, "schedule_offset", 0) == 0;
  return at_once && params.size("calls") > 0 ? params.integer("/calls/0") - 1 : 0;
}

class RecordedMoq {
 public:
  RecordedMoq(sdk::Host host, const sdk::Params& params)
      : method_(host, params, {&doubling, calls_before_first(params), &recorded_noise}) {
    for (const std::string& name : params.names("bits")) {
      bits_[name] = params.numbers("/bits/" + sdk::Params::escaped(name));
    }
  }

  sdk::CompressionPlan plan(const sdk::ModelTable& model) { return method_.plan(model); }
  bool active(std::int64_t updates) const { return method_.active(updates); }
  void measure(const sdk::CompressedPiece& piece, unsigned round, double* partials) const {
    method_.measure(piece, round, partials);
  }
  void transform(const sdk::CompressedPiece& piece, std::int64_t updates, std::span<float> values) const {
    method_.transform(piece, updates, values);
  }
  int code_bits(std::string_view parameter, std::int64_t updates) const {
    return method_.code_bits(parameter, updates);
  }
  void encode(const sdk::CompressedPiece& piece, std::int64_t updates, const sdk::Codes& codes) const {
    method_.encode(piece, updates, codes);
  }
  void prepare(std::span<const sdk::CompressedPiece> pieces, std::int64_t updates, bool, const sdk::PieceRanks&) {
    method_.follow(updates);
    for (const sdk::CompressedPiece& piece : pieces) compare(std::string(piece.name()), updates);
  }
  void save(const sdk::Sink& sink) const { sink.write(method_.saved()); }
  void load(const sdk::Document& saved) { method_.load(saved); }

 private:
  void compare(const std::string& name, std::int64_t updates) const {
    const auto found = bits_.find(name);
    if (found == bits_.end()) throw sdk::Error("'" + name + "' is quantised, and has no recorded bits");
    if (updates == 0 || updates > static_cast<std::int64_t>(found->second.size())) return;
    const int theirs = static_cast<int>(found->second[static_cast<std::size_t>(updates) - 1]);
    const int ours = method_.bits_at(name, updates);
    if (ours == theirs) return;
    throw sdk::Error(name + " has " + std::to_string(ours) + " bits after " + std::to_string(updates) +
                     " updates, recorded " + std::to_string(theirs));
  }

  UpdateQuantization method_;
  std::map<std::string, std::vector<double>> bits_;
};

}  // namespace
}  // namespace capstan::compression

CAPSTAN_PLUGIN(&capstan::sdk::compression<capstan::compression::RecordedMoq, "recorded_moq">)
