#include "core/checkpoint/checkpoint_diff.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "core/checkpoint/dtypes.hpp"
#include "core/checkpoint/whole_tensors.hpp"

namespace capstan {
namespace {

constexpr std::int64_t kBlock = 1 << 18;  // elements that are compared at once
constexpr double kInfinity = std::numeric_limits<double>::infinity();

using TensorKey = std::pair<std::string, std::string>;

std::map<TensorKey, WholeTensor> by_key(const CheckpointContents& contents) {
  std::map<TensorKey, WholeTensor> all;
  for (WholeTensor& tensor : whole_tensors(contents)) {
    all.emplace(TensorKey(tensor.first().parameter, tensor.first().state), std::move(tensor));
  }
  return all;
}

std::string text_of(const TensorKey& key) {
  return key.first.empty() ? "'" + key.second + "'" : key.second + " of '" + key.first + "'";
}

/// Of one rank alone: another number of ranks has others.
bool is_of_a_rank(const TensorKey& key) { return key.second.find(" of rank ") != std::string::npos; }

/// Blocks of both sides that hold elements of the same places.
class Blocks {
 public:
  Blocks(const WholeTensor& a, const WholeTensor& b) : a_(a), b_(b) {}

  bool next() {
    if (!left_a_.defined() || left_a_.numel() == 0) left_a_ = a_.next(kBlock);
    if (!left_b_.defined() || left_b_.numel() == 0) left_b_ = b_.next(kBlock);
    if (!left_a_.defined() || !left_b_.defined()) return false;
    const std::int64_t count = std::min(left_a_.numel(), left_b_.numel());
    a = left_a_.narrow(0, 0, count);
    b = left_b_.narrow(0, 0, count);
    left_a_ = left_a_.narrow(0, count, left_a_.numel() - count);
    left_b_ = left_b_.narrow(0, count, left_b_.numel() - count);
    return true;
  }

  at::Tensor a, b;

 private:
  ElementReader a_, b_;
  at::Tensor left_a_, left_b_;
};

/// Integers, which double would round from 2^53 on.
void compare_integers(const at::Tensor& a, const at::Tensor& b, TensorDifference& difference) {
  const at::Tensor wide_a = a.to(at::kLong).contiguous(), wide_b = b.to(at::kLong).contiguous();
  const auto *x = wide_a.const_data_ptr<std::int64_t>(), *y = wide_b.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < wide_a.numel(); ++i) {
    if (x[i] == y[i]) continue;
    ++difference.differing;
    const auto least = static_cast<std::uint64_t>(std::min(x[i], y[i]));
    const auto absolute = static_cast<double>(static_cast<std::uint64_t>(std::max(x[i], y[i])) - least);
    const double larger = std::max(std::abs(static_cast<double>(x[i])), std::abs(static_cast<double>(y[i])));
    difference.largest_absolute = std::max(difference.largest_absolute, absolute);
    difference.largest_relative = std::max(difference.largest_relative, absolute / larger);
  }
}

void compare_block(const at::Tensor& a, const at::Tensor& b, TensorDifference& difference) {
  if (a.scalar_type() == b.scalar_type() && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0) {
    return;
  }
  if (at::isIntegralType(a.scalar_type(), true) && at::isIntegralType(b.scalar_type(), true)) {
    return compare_integers(a, b, difference);
  }
  const at::Tensor wide_a = a.to(at::kDouble).contiguous(), wide_b = b.to(at::kDouble).contiguous();
  const auto *x = wide_a.const_data_ptr<double>(), *y = wide_b.const_data_ptr<double>();
  for (std::int64_t i = 0; i < wide_a.numel(); ++i) {
    if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
    ++difference.differing;
    const double absolute = std::abs(x[i] - y[i]);
    const bool finite = std::isfinite(absolute);
    difference.largest_absolute = std::max(difference.largest_absolute, finite ? absolute : kInfinity);
    const double relative = finite ? absolute / std::max(std::abs(x[i]), std::abs(y[i])) : kInfinity;
    difference.largest_relative = std::max(difference.largest_relative, relative);
  }
}

TensorDifference compare(const WholeTensor& a, const WholeTensor& b) {
  TensorDifference difference{.parameter = a.first().parameter,
                              .state = a.first().state,
                              .shape_a = a.first().shape,
                              .shape_b = b.first().shape,
                              .dtype_a = safetensors_dtype(a.first().values.scalar_type()),
                              .dtype_b = safetensors_dtype(b.first().values.scalar_type())};
  if (difference.shape_a != difference.shape_b || a.elements() != b.elements()) return difference;
  difference.elements = a.elements();
  for (Blocks blocks(a, b); blocks.next();) compare_block(blocks.a, blocks.b, difference);
  return difference;
}

void compare_tensors(const CheckpointContents& a, const CheckpointContents& b, CheckpointDiff& diff) {
  const auto all_a = by_key(a), all_b = by_key(b);
  for (const auto& [key, tensor] : all_a) {
    const auto other = all_b.find(key);
    if (other == all_b.end()) {
      if (!is_of_a_rank(key)) diff.only_a.push_back(text_of(key));
      continue;
    }
    TensorDifference found = compare(tensor, other->second);
    const bool same_shape = found.shape_a == found.shape_b && tensor.elements() == other->second.elements();
    if (same_shape && found.differing == 0) {
      ++diff.equal_tensors;
    } else {
      diff.tensors.push_back(std::move(found));
    }
  }
  for (const auto& [key, tensor] : all_b) {
    if (!all_a.contains(key) && !is_of_a_rank(key)) diff.only_b.push_back(text_of(key));
  }
}

/// The values of nested objects by their paths. Lists are values.
void flatten(const Json& value, const std::string& path, std::map<std::string, Json>& out) {
  if (!value.is_object() || value.size() == 0) {
    out[path] = value;
    return;
  }
  for (const auto& [name, member] : value.as_object()) flatten(member, path.empty() ? name : path + "." + name, out);
}

/// The members of both states under one of the names. `either`: also those that one side alone has.
void compare_members(const Json& a, const Json& b, const std::vector<const char*>& names, bool either,
                     std::vector<StateDifference>& out) {
  for (const char* name : names) {
    std::map<std::string, Json> flat_a, flat_b;
    if (const Json* found = a.find(name)) flatten(*found, name, flat_a);
    if (const Json* found = b.find(name)) flatten(*found, name, flat_b);
    std::set<std::string> paths;
    for (const auto* one : {&flat_a, &flat_b}) {
      for (const auto& [path, value] : *one) paths.insert(path);
    }
    for (const std::string& path : paths) {
      const auto in_a = flat_a.find(path), in_b = flat_b.find(path);
      const bool both = in_a != flat_a.end() && in_b != flat_b.end();
      if (both ? in_a->second == in_b->second : !either) continue;
      out.push_back({path, in_a == flat_a.end() ? Json() : in_a->second, in_b == flat_b.end() ? Json() : in_b->second});
    }
  }
}

}  // namespace

CheckpointDiff compare_checkpoints(const CheckpointContents& a, const CheckpointContents& b) {
  CheckpointDiff diff;
  compare_tensors(a, b, diff);
  compare_members(a.state, b.state,
                  {"global_steps", "updates", "skipped_steps", "global_samples", "loss_scaler", "rng"},
                  /*either=*/false, diff.counters);
  compare_members(a.state, b.state, {"written_by", "world_size"}, /*either=*/true, diff.settings);
  for (const char* kind : {"optimizer", "scheduler"}) {
    const Json *in_a = a.state.find(kind), *in_b = b.state.find(kind);
    const Json *type_a = in_a ? in_a->find("type") : nullptr, *type_b = in_b ? in_b->find("type") : nullptr;
    const Json had = type_a ? *type_a : Json(), has = type_b ? *type_b : Json();
    if (had != has) diff.settings.push_back({std::string(kind) + ".type", had, has});
  }
  compare_members(a.state, b.state, {"groups", "client_state", "config"}, /*either=*/true, diff.settings);
  return diff;
}

}  // namespace capstan
