#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/json.hpp"

namespace capstan {

/// A key of the configuration and the values to try.
struct TunedKey {
  std::string path;          // "zero_optimization.overlap_comm"
  std::vector<Json> values;  // null: the key is left out
};

/// One configuration to try.
struct TuningPoint {
  std::string name;   // "z2_gas1_tmbspg3"; unique in its space
  std::string space;  // "z2", or "z2_rbs_abs_tmbspg" where other keys are tuned too
  int stage = 0;
  std::int64_t micro_batch = 1, accumulation = 1, train_batch = 1;
  std::vector<std::pair<std::string, Json>> values;  // of all tuned keys, by path
};

/// How a micro-batch becomes a global batch.
struct BatchBudget {
  std::int64_t per_device = 1;  // samples of a step on one device; the accumulation is what a micro-batch leaves of it
  int devices = 1;              // of a trial, divided by the degree of model parallelism
};

/// The keys of zero_optimization that DeepSpeed's template fills in at a stage, in its order: the base of a trial in
/// which more than stage and micro-batch is tuned. `hidden_size` sizes the buckets of stage 3.
Json stage_template(int stage, std::optional<std::int64_t> hidden_size);
/// The keys that DeepSpeed tunes at a stage, and their values: 9 combinations at stage 1, 72 at stage 2, 144 at
/// stage 3.
std::vector<TunedKey> template_keys(int stage);
/// The same with values that make a difference here, such as buckets below the largest one.
std::vector<TunedKey> acting_keys(int stage);

/// Every combination of the keys with each micro-batch, named as DeepSpeed names its experiments: "z1_rbs5.0e+07_...".
/// With no keys: "z1_gas2_tmbspg4". `order`: the keys' order in names, by their paths' last words; empty: as they
/// stand.
std::vector<TuningPoint> all_points(int stage, const std::vector<TunedKey>& keys,
                                    const std::vector<std::int64_t>& micro_batches, const BatchBudget& budget,
                                    const std::vector<std::string>& order = {});
/// "z1_rbs_abs_tmbspg"
std::string space_name(int stage, const std::vector<TunedKey>& keys);
/// The initials of a key's words: "tmbspg". A key of an offload section has "op_" or "oo_" in front.
std::string initials(std::string_view path);
/// "5.0e+08", "T", "128"
std::string value_text(const Json& value);

/// What a configuration leaves idle, from which points follow that are one and the same.
struct SpaceFacts {
  int world = 1;
  std::int64_t trainable = 0;             // elements; 0: not known
  std::vector<std::int64_t> sizes;        // elements of each parameter, in any order; empty: not known
  bool parameters_offloaded = false;      // by the configuration, at stage 3
  bool reduces_scattered_values = false;  // reduce_scatter matters: gradients are quantised
};

/// The values of a point without keys that have no effect at its stage, those above a cap as the cap.
std::vector<std::pair<std::string, Json>> canonical_values(const TuningPoint& point, const SpaceFacts& facts);
/// The keys that make a difference at the stage, each with the values of which no two do the same.
std::vector<TunedKey> distinct_keys(int stage, const std::vector<TunedKey>& keys, const SpaceFacts& facts);
/// Points of which each differs in effect from all others: of equals, the first, with its canonical values.
std::vector<TuningPoint> distinct_points(const std::vector<TuningPoint>& points, const SpaceFacts& facts);

}  // namespace capstan
