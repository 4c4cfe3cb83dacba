#include "cli/verify/verify_compare.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <stdexcept>
#include <vector>

#include "cli/verify/verify_record.hpp"
#include "core/errors.hpp"
#include "core/text/json.hpp"
#include "core/tuning/trial_folder.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;

std::string shown(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

double norm_of(const at::Tensor& values) {
  return at::linalg_vector_norm(values, 2, at::OptionalIntArrayRef(), false, at::kDouble).item<double>();
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && std::equal(static_cast<const char*>(a.const_data_ptr()),
                                              static_cast<const char*>(a.const_data_ptr()) + a.nbytes(),
                                              static_cast<const char*>(b.const_data_ptr()));
}

class Record {
 public:
  explicit Record(fs::path folder) : folder_(std::move(folder)) {
    const std::optional<Json> facts = read_json(RunRecord::facts(folder_));
    if (!facts) throw std::runtime_error(RunRecord::facts(folder_).filename().string() + " cannot be read");
    facts_ = *facts;
    for (const Json& name : facts_.at("parameters").as_array()) parameters_.push_back(name.as_string());
  }

  const std::vector<std::string>& parameters() const { return parameters_; }
  std::int64_t first_step() const { return facts_.at("first_step").as_integer(); }
  std::int64_t end_step() const {
    return first_step() + static_cast<std::int64_t>(facts_.at("losses").as_array().size());
  }
  const Json& at_step(const char* what, std::int64_t step) const {
    return facts_.at(what).as_array().at(static_cast<std::size_t>(step - first_step()));
  }
  std::map<std::string, at::Tensor> gradients(std::int64_t step) const {
    return tensors(RunRecord::gradients(folder_, step));
  }
  std::map<std::string, at::Tensor> first_weights() const { return tensors(RunRecord::first_weights(folder_)); }
  std::map<std::string, at::Tensor> weights() const { return tensors(RunRecord::weights(folder_)); }
  std::map<std::string, at::Tensor> states() const {
    std::error_code error;
    return fs::exists(RunRecord::states(folder_), error) ? tensors(RunRecord::states(folder_))
                                                         : std::map<std::string, at::Tensor>();
  }

 private:
  static std::map<std::string, at::Tensor> tensors(const fs::path& file) {
    std::map<std::string, at::Tensor> found;
    for (SafetensorsEntry& entry : read_safetensors(file)) found.emplace(entry.name, entry.values);
    return found;
  }

  fs::path folder_;
  Json facts_;
  std::vector<std::string> parameters_;
};

class Comparing {
 public:
  Comparing(Record reference, Record run, const VerifyBound& bound, const VerifyFactors& factors)
      : reference_(std::move(reference)), run_(std::move(run)), bound_(bound), factors_(factors) {}

  VerifyComparison result() {
    const std::int64_t begin = std::max(reference_.first_step(), run_.first_step());
    const std::int64_t end = std::min(reference_.end_step(), run_.end_step());
    // A run that goes on from a checkpoint begins with weights that the other one has come to, not with its first ones.
    if (reference_.first_step() == run_.first_step()) compare_first_weights();
    for (std::int64_t step = begin; step < end; ++step) compare_step(step, step == 0);
    if (reference_.end_step() == run_.end_step()) {
      const auto moved = bound_.is_equal() ? std::map<std::string, at::Tensor>() : moved_by_gradients();
      compare_weights(moved);
      compare_states(moved);
    }
    return result_;
  }

 private:
  void fail(VerifyDifference& of, const std::string& text, const std::string& cause = "") {
    of.too_large = true;
    if (!result_.found.empty()) return;
    result_.found = text + "." + (cause.empty() ? "" : " " + cause);
    result_.explained = !cause.empty();
  }

  void compare_first_weights() {
    const auto theirs = reference_.first_weights(), ours = run_.first_weights();
    for (const std::string& name : reference_.parameters()) {
      if (same_bits(theirs.at(name), ours.at(name))) continue;
      fail(result_.weights, "the initial values of '" + name + "' differ",
           "The model draws them from another generator than LibTorch's, which the engine seeds, or reads a clock.");
      return;
    }
  }

  void compare_step(std::int64_t step, bool is_first) {
    const std::string at = " at step " + std::to_string(step);
    if (reference_.at_step("samples", step) != run_.at_step("samples", step)) {
      fail(result_.loss, "the ranks saw other samples" + at,
           "The data set or the sampler depends on the processes or on how a batch is cut.");
    }
    const Json &theirs = reference_.at_step("losses", step), &ours = run_.at_step("losses", step);
    if (theirs != ours) {
      const bool numbers = theirs.is_number() && ours.is_number();
      const double difference =
          numbers ? std::abs(theirs.as_number() - ours.as_number()) / std::max(std::abs(theirs.as_number()), 1e-12)
                  : INFINITY;
      result_.loss.size = std::max(result_.loss.size, difference);
      if (difference > bound_.loss()) {
        const bool is_sum =
            numbers && factors_.rows != 1 && std::abs(ours.as_number() / theirs.as_number() / factors_.rows - 1) < 0.01;
        fail(result_.loss, "the loss" + at + " is " + ours.dump() + ", and " + theirs.dump() + " there",
             is_sum ? "It grows with the rows of a micro-batch: the model returns a sum where a mean is due." : "");
      }
    }
    compare_gradients(step, is_first ? bound_.first_gradients() : bound_.later());
  }

  void compare_gradients(std::int64_t step, double allowed) {
    const auto theirs = reference_.gradients(step), ours = run_.gradients(step);
    double all = 0;
    for (const auto& [name, values] : theirs) all += std::pow(norm_of(values), 2);
    // Some gradients are nothing but rounding, that of a key's bias for instance: they are measured by the others.
    const double least = std::sqrt(all / static_cast<double>(std::max<std::size_t>(theirs.size(), 1))) / 100;
    for (auto name = reference_.parameters().rbegin(); name != reference_.parameters().rend(); ++name) {
      const auto here = ours.find(*name), there = theirs.find(*name);
      const std::string at = "the gradient of '" + *name + "' at step " + std::to_string(step);
      if ((here == ours.end()) != (there == theirs.end())) {
        fail(result_.gradients,
             at + (here == ours.end() ? " is missing, and is there in the other run" : " is there in this run alone"));
        continue;
      }
      if (here == ours.end() || same_bits(here->second, there->second)) continue;
      const double difference =
          norm_of(here->second - there->second) / std::max(norm_of(there->second), std::max(least, 1e-30));
      result_.gradients.size = std::max(result_.gradients.size, difference);
      if (difference <= allowed) continue;  // NaN is not
      const auto [ratio, cause] = guess(there->second, here->second);
      fail(result_.gradients, at + place_of(there->second, here->second) + ratio, cause);
    }
  }

  /// ", element 17: 0.0132 here, 0.0528 there" for the element that differs most.
  static std::string place_of(const at::Tensor& theirs, const at::Tensor& ours) {
    const at::Tensor difference = (ours - theirs).abs().view({-1});
    const auto at = difference.argmax().item<std::int64_t>();
    return ", element " + std::to_string(at) + ": " + shown("%.4g", ours.view({-1})[at].item<double>()) + " here, " +
           shown("%.4g", theirs.view({-1})[at].item<double>()) + " there";
  }

  /// The ratio of two gradients, as text, and what it tells.
  std::pair<std::string, std::string> guess(const at::Tensor& theirs, const at::Tensor& ours) const {
    const at::Tensor a = theirs.view({-1}).to(at::kDouble), b = ours.view({-1}).to(at::kDouble);
    if (!at::isfinite(b).all().item<bool>()) return {", which is not finite", ""};
    const double squares = at::dot(a, a).item<double>();
    const double ratio = squares > 0 ? at::dot(a, b).item<double>() / squares : 1;
    // How much of it has another direction.
    if (norm_of(b - ratio * a) > 0.01 * std::max(norm_of(b), 1e-30)) return {"", ""};
    const std::string text = " (" + shown("%.3g", ratio) + " times)";
    const auto is = [&](double factor) { return factor != 1 && std::abs(ratio / factor - 1) < 0.01; };
    const auto accumulation = static_cast<double>(factors_.accumulation);
    const auto processes = static_cast<double>(factors_.processes);
    if (std::abs(ratio) < 1e-6) return {text, "Nothing adds to this gradient."};
    if (is(accumulation)) return {text, "It is a sum over micro-batches where a mean is due."};
    if (is(1 / accumulation)) return {text, "One of the micro-batches counts alone, or the mean is taken twice."};
    if (is(processes)) return {text, "It is a sum over ranks where a mean is due."};
    if (is(1 / processes)) return {text, "One of the ranks counts alone, or the mean is taken twice."};
    const auto is_scale = [](double factor) {
      return factor >= 255 && std::abs(factor / std::exp2(std::round(std::log2(factor))) - 1) < 0.01;
    };
    if (is_scale(ratio)) return {text, "That looks like a loss scale that was not taken out."};
    if (is_scale(1 / ratio)) return {text, "That looks like a loss scale that was not taken out there."};
    return {text, ""};
  }

  /// Elements of each parameter whose gradient was more than rounding at any step. The others, a key's bias for
  /// instance, move with the sign of their rounding where an optimizer divides by the gradient's size.
  std::map<std::string, at::Tensor> moved_by_gradients() const {
    std::map<std::string, at::Tensor> moved;
    for (std::int64_t step = reference_.first_step(); step < reference_.end_step(); ++step) {
      const auto gradients = reference_.gradients(step);
      double squares = 0, elements = 0;
      for (const auto& [name, values] : gradients) {
        squares += std::pow(norm_of(values), 2);
        elements += static_cast<double>(values.numel());
      }
      const double rounding = bound_.first_gradients() * std::sqrt(squares / std::max(elements, 1.0));
      for (const auto& [name, values] : gradients) {
        const at::Tensor more = values.abs() > rounding;
        const auto [place, is_new] = moved.emplace(name, more);
        if (!is_new) place->second.logical_or_(more);
      }
    }
    return moved;
  }

  /// Our values, with theirs in place of elements that nothing but rounding moves.
  static at::Tensor without_rounding(const std::map<std::string, at::Tensor>& moved, const std::string& parameter,
                                     const at::Tensor& ours, const at::Tensor& theirs) {
    const auto place = moved.find(parameter);
    return place == moved.end() ? ours : at::where(place->second, ours, theirs);
  }

  void compare_weights(const std::map<std::string, at::Tensor>& moved) {
    const auto theirs = reference_.weights(), ours = run_.weights(), first = reference_.first_weights();
    double apart = 0, way = 0;
    std::string other;
    for (const std::string& name : reference_.parameters()) {
      const at::Tensor& a = theirs.at(name);
      const at::Tensor b = without_rounding(moved, name, ours.at(name), a);
      way += std::pow(norm_of(a - first.at(name)), 2);
      if (same_bits(a, b)) continue;
      apart += std::pow(norm_of(a - b), 2);
      if (other.empty()) other = "the weights of '" + name + "' differ at the end" + place_of(a, b);
    }
    if (other.empty()) return;
    const double difference = std::sqrt(apart) / std::max(std::sqrt(way), 1e-30);
    result_.weights.size = std::max(result_.weights.size, difference);
    if (!(difference <= bound_.later())) fail(result_.weights, other);
  }

  /// As gradients: the states of a parameter that has next to nothing are measured by those of the same name.
  void compare_states(const std::map<std::string, at::Tensor>& moved) {
    const auto theirs = reference_.states(), ours = run_.states();
    std::map<std::string, std::pair<double, int>> sizes;  // of all parameters' states of a name
    for (const auto& [key, values] : theirs) {
      auto& [squares, count] = sizes[key.substr(key.rfind('/'))];
      squares += std::pow(norm_of(values), 2);
      ++count;
    }
    for (const auto& [key, there] : theirs) {
      const auto found = ours.find(key);
      if (found == ours.end()) continue;
      const std::size_t slash = key.rfind('/');
      const at::Tensor here = without_rounding(moved, key.substr(0, slash), found->second, there);
      if (same_bits(here, there)) continue;
      const auto& [squares, count] = sizes[key.substr(slash)];
      const double least = std::sqrt(squares / count) / 100;
      const double difference = norm_of(here - there) / std::max(norm_of(there), std::max(least, 1e-30));
      result_.weights.size = std::max(result_.weights.size, difference);
      if (difference <= bound_.later()) continue;
      fail(result_.weights, "the state '" + key.substr(slash + 1) + "' of '" + key.substr(0, slash) +
                                "' differs at the end" + place_of(there, here));
    }
  }

  const Record reference_, run_;
  const VerifyBound& bound_;
  const VerifyFactors& factors_;
  VerifyComparison result_;
};

}  // namespace

VerifyBound VerifyBound::within(std::string reason, double epsilon) {
  VerifyBound bound;
  bound.reason_ = std::move(reason);
  bound.loss_ = std::min(32 * epsilon, 0.01);
  bound.first_ = 32 * epsilon;
  // An optimizer that divides by the gradient's size moves a weight whose gradient is nothing but rounding as far as
  // any other one, so that two runs part by more than what was rounded.
  bound.later_ = std::min(8192 * epsilon, 0.25);
  return bound;
}

std::string VerifyDifference::text() const {
  if (too_large) return "DIFFERS";
  return size == 0 ? "equal" : shown("%.1e", size);
}

VerifyComparison compare_records(const fs::path& reference, const fs::path& run, const VerifyBound& bound,
                                 const VerifyFactors& factors) {
  try {
    return Comparing(Record(reference), Record(run), bound, factors).result();
  } catch (const RuntimeFault&) {
    throw;
  } catch (const std::exception& error) {
    throw RuntimeFault(run.string() + ": is not the whole record of a run: " + error.what() + ".");
  }
}

}  // namespace capstan::cli
