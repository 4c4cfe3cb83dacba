#include "core/tuning/space.hpp"

#include <algorithm>
#include <cstdio>
#include <set>

#include "core/config/typed/zero.hpp"

namespace capstan {
namespace {

const std::string kZero = "zero_optimization.";
constexpr double kShortest = 9000;  // larger values are written with an exponent

TunedKey zero_key(const char* name, std::vector<Json> values) { return {kZero + name, std::move(values)}; }

std::string last_word(std::string_view path) { return std::string(path.substr(path.rfind('.') + 1)); }

std::string joined_name(const TuningPoint& point, const std::vector<std::string>& order) {
  std::vector<const std::pair<std::string, Json>*> entries;
  for (const auto& entry : point.values) entries.push_back(&entry);
  const auto place = [&](const std::string& path) {
    return std::find(order.begin(), order.end(), last_word(path)) - order.begin();
  };
  std::stable_sort(entries.begin(), entries.end(),
                   [&](const auto* a, const auto* b) { return place(a->first) < place(b->first); });
  std::string name = "z" + std::to_string(point.stage);
  for (const auto* entry : entries) name += "_" + initials(entry->first) + value_text(entry->second);
  return name + "_tmbspg" + std::to_string(point.micro_batch) + "_gas" + std::to_string(point.accumulation);
}

void combine(const std::vector<TunedKey>& keys, std::size_t at, TuningPoint& point, std::vector<TuningPoint>& out) {
  if (at == keys.size()) {
    out.push_back(point);
    return;
  }
  for (const Json& value : keys[at].values) {
    point.values.emplace_back(keys[at].path, value);
    combine(keys, at + 1, point, out);
    point.values.pop_back();
  }
}

bool one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Whether a key of zero_optimization makes a difference at the stage.
bool acts(const std::string& name, int stage, const SpaceFacts& facts) {
  if (name == "stage") return true;
  if (one_of(name, {"contiguous_gradients", "round_robin_gradients", "stage3_gather_16bit_weights_on_model_save"})) {
    return false;
  }
  if (name == "reduce_scatter") return facts.reduces_scattered_values;
  if (name.starts_with("offload_")) return true;
  if (facts.world == 1) return facts.parameters_offloaded && name.starts_with("stage3_");
  if (one_of(name, {"allgather_partitions", "allgather_bucket_size"})) return stage == 1 || stage == 2;
  if (name == "grad_hooks") return stage == 1;
  if (name.starts_with("stage3_") || name.starts_with("zero_")) return stage == 3;
  return true;
}

/// The value itself, or the least that does the same.
Json capped(const std::string& name, const Json& value, const SpaceFacts& facts) {
  if (!value.is_number()) return value;
  double number = value.as_number();
  const auto cap = [&](std::int64_t most) {
    if (most > 0) number = std::min(number, static_cast<double>(most));
  };
  if (name == "reduce_bucket_size") cap(kLargestReduceBucket);
  if (one_of(name, {"reduce_bucket_size", "allgather_bucket_size", "sub_group_size", "stage3_max_live_parameters",
                    "stage3_max_reuse_distance", "stage3_prefetch_bucket_size"})) {
    cap(facts.trainable);
  }
  if (name == "stage3_param_persistence_threshold" && !facts.sizes.empty()) {
    // What counts is which parameters are not larger.
    std::int64_t largest = 0;
    for (const std::int64_t size : facts.sizes) {
      if (static_cast<double>(size) <= number) largest = std::max(largest, size);
    }
    number = static_cast<double>(largest);
  }
  return Json(static_cast<std::int64_t>(number));
}

std::string key_of(const TuningPoint& point) {
  std::string key =
      std::to_string(point.stage) + " " + std::to_string(point.micro_batch) + " " + std::to_string(point.accumulation);
  std::vector<std::string> parts;
  for (const auto& [path, value] : point.values) parts.push_back(path + "=" + value.dump());
  std::sort(parts.begin(), parts.end());
  for (const std::string& part : parts) key += " " + part;
  return key;
}

}  // namespace

Json stage_template(int stage, std::optional<std::int64_t> hidden_size) {
  Json zero = Json::object();
  zero["stage"] = stage;
  if (stage == 1) {
    zero["reduce_bucket_size"] = 5e8;
    zero["allgather_bucket_size"] = 5e8;
  }
  if (stage < 2) return zero;
  zero["allgather_partitions"] = true;
  zero["allgather_bucket_size"] = 5e8;
  zero["overlap_comm"] = false;
  zero["reduce_scatter"] = true;
  zero["reduce_bucket_size"] = 5e8;
  zero["contiguous_gradients"] = false;
  if (stage < 3) return zero;
  zero["stage3_max_live_parameters"] = 1'000'000'000;
  zero["stage3_max_reuse_distance"] = 1'000'000'000;
  zero["stage3_prefetch_bucket_size"] = 5e8;
  zero["stage3_param_persistence_threshold"] = 1'000'000;
  zero["stage3_gather_16bit_weights_on_model_save"] = false;
  zero["sub_group_size"] = 1e12;
  if (hidden_size) {
    zero["reduce_bucket_size"] = *hidden_size * *hidden_size;
    zero["stage3_prefetch_bucket_size"] = 0.9 * static_cast<double>(*hidden_size * *hidden_size);
    zero["stage3_param_persistence_threshold"] = 10 * *hidden_size;
  }
  return zero;
}

std::vector<TunedKey> template_keys(int stage) {
  const std::vector<Json> buckets = {5e7, 5e8, 1e9}, flags = {true, false};
  const TunedKey reduce = zero_key("reduce_bucket_size", buckets), gather = zero_key("allgather_bucket_size", buckets);
  if (stage == 0) return {};
  if (stage == 1) return {reduce, gather};
  std::vector<TunedKey> keys = {zero_key("overlap_comm", flags), zero_key("reduce_scatter", flags), reduce};
  if (stage == 3) keys.push_back(zero_key("allgather_partitions", flags));
  keys.push_back(gather);
  keys.push_back(zero_key("contiguous_gradients", flags));
  return keys;
}

std::vector<TunedKey> acting_keys(int stage) {
  std::vector<TunedKey> keys = {zero_key("reduce_bucket_size", {16384, 65536, 262144, kLargestReduceBucket}),
                                zero_key("overlap_comm", {false, true})};
  if (stage == 1 || stage == 2) {
    keys.push_back(zero_key("allgather_bucket_size", {262144, 500'000'000}));
    keys.push_back(zero_key("allgather_partitions", {true, false}));
  }
  if (stage == 3) {
    keys.push_back(zero_key("stage3_prefetch_bucket_size", {0, 1'000'000, 50'000'000}));
    keys.push_back(zero_key("stage3_param_persistence_threshold", {0, 100'000, 1'000'000}));
    keys.push_back(zero_key("stage3_max_live_parameters", {1'000'000, 1'000'000'000}));
  }
  return keys;
}

std::string initials(std::string_view path) {
  std::string prefix;
  if (path.find("offload_param.") != std::string_view::npos) prefix = "op_";
  if (path.find("offload_optimizer.") != std::string_view::npos) prefix = "oo_";
  const std::string word = last_word(path);
  std::string letters;
  for (std::size_t i = 0; i < word.size(); ++i) {
    if (word[i] != '_' && (i == 0 || word[i - 1] == '_')) letters += word[i];
  }
  return prefix + letters;
}

std::string value_text(const Json& value) {
  if (value.is_null()) return "N";
  if (value.is_bool()) return value.as_bool() ? "T" : "F";
  if (value.is_object()) return "Y";
  if (value.is_string()) return value.as_string();
  if (!value.is_number()) return value.dump();
  if (value.as_number() <= kShortest) return value.dump();
  char text[32];
  std::snprintf(text, sizeof text, "%.1e", value.as_number());
  return text;
}

std::string space_name(int stage, const std::vector<TunedKey>& keys) {
  std::string name = "z" + std::to_string(stage);
  for (const TunedKey& key : keys) name += "_" + initials(key.path);
  return name + "_tmbspg";
}

std::vector<TuningPoint> all_points(int stage, const std::vector<TunedKey>& keys,
                                    const std::vector<std::int64_t>& micro_batches, const BatchBudget& budget,
                                    const std::vector<std::string>& order) {
  std::vector<TuningPoint> points;
  for (const std::int64_t micro : micro_batches) {
    TuningPoint point;
    point.stage = stage;
    point.micro_batch = micro;
    point.accumulation = std::max<std::int64_t>(1, budget.per_device / micro);
    point.train_batch = micro * point.accumulation * budget.devices;
    combine(keys, 0, point, points);
  }
  for (TuningPoint& point : points) {
    const std::string fast = "z" + std::to_string(stage) + "_gas" + std::to_string(point.accumulation) + "_tmbspg" +
                             std::to_string(point.micro_batch);
    point.name = keys.empty() ? fast : joined_name(point, order);
    point.space = keys.empty() ? "z" + std::to_string(stage) : space_name(stage, keys);
  }
  return points;
}

std::vector<std::pair<std::string, Json>> canonical_values(const TuningPoint& point, const SpaceFacts& facts) {
  std::vector<std::pair<std::string, Json>> values;
  const auto offload = std::find_if(point.values.begin(), point.values.end(),
                                    [](const auto& value) { return value.first == kZero + "offload_param"; });
  SpaceFacts own = facts;
  if (offload != point.values.end()) own.parameters_offloaded = !offload->second.is_null();
  for (const auto& [path, value] : point.values) {
    if (!path.starts_with(kZero)) {
      values.emplace_back(path, value);
      continue;
    }
    const std::string name = path.substr(kZero.size());
    if (acts(name, point.stage, own)) values.emplace_back(path, capped(name, value, own));
  }
  return values;
}

std::vector<TunedKey> distinct_keys(int stage, const std::vector<TunedKey>& keys, const SpaceFacts& facts) {
  std::vector<TunedKey> distinct;
  for (const TunedKey& key : keys) {
    TunedKey left{key.path, {}};
    for (const Json& value : key.values) {
      TuningPoint point;
      point.stage = stage;
      point.values = {{key.path, value}};
      const auto canonical = canonical_values(point, facts);
      if (canonical.empty()) continue;
      const Json& capped = canonical.front().second;
      if (std::find(left.values.begin(), left.values.end(), capped) == left.values.end()) left.values.push_back(capped);
    }
    if (!left.values.empty()) distinct.push_back(std::move(left));
  }
  return distinct;
}

std::vector<TuningPoint> distinct_points(const std::vector<TuningPoint>& points, const SpaceFacts& facts) {
  std::vector<TuningPoint> distinct;
  std::set<std::string> seen;
  for (const TuningPoint& point : points) {
    TuningPoint canonical = point;
    canonical.values = canonical_values(point, facts);
    // One process holds everything: its stages are one.
    if (facts.world == 1 && !facts.parameters_offloaded) canonical.stage = 0;
    if (!seen.insert(key_of(canonical)).second) continue;
    canonical.stage = point.stage;
    distinct.push_back(std::move(canonical));
  }
  return distinct;
}

}  // namespace capstan
