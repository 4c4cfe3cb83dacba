#include "eigenvalue.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/normal.h>

#include <charconv>
#include <cstdio>
#include <map>

#include "capstan/sdk/aten.hpp"
#include "capstan/sdk/config_mistake.hpp"

namespace capstan::eigenvalue {
namespace {

const std::string kSection = "quantize_training.eigenvalue";

std::string shown(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string exactly(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

/// How many numbered blocks each container has whose blocks have parameters: {"blocks": 4}.
std::map<std::string, std::int64_t> containers(const std::vector<std::string>& parameters) {
  std::map<std::string, std::int64_t> counts;
  for (const std::string& name : parameters) {
    for (auto dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
      const auto end = name.find('.', dot + 1);
      if (end == std::string::npos) break;
      std::int64_t number = -1;
      const char* last = name.data() + end;
      const auto read = std::from_chars(name.data() + dot + 1, last, number);
      if (read.ec != std::errc() || read.ptr != last || number < 0) continue;
      std::int64_t& count = counts[name.substr(0, dot)];
      if (number >= count) count = number + 1;
    }
  }
  return counts;
}

}  // namespace

Start drawn(std::uint64_t seed) {
  return [seed](const Block& block, std::size_t, std::int64_t step) {
    Vector v;
    for (std::size_t i = 0; i < block.names.size(); ++i) {
      std::uint64_t key = 0xCBF29CE484222325u ^ seed;  // FNV-1a
      const std::string text = block.names[i] + " " + std::to_string(step);
      for (const char c : text) key = (key ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
      v.push_back(at::empty(block.shapes[i], at::kFloat));
      v.back().normal_(0, 1, at::make_generator<at::CPUGeneratorImpl>(key));
    }
    return v;
  };
}

Eigenvalue::Eigenvalue(sdk::Host host, const sdk::Params& params, Start start)
    : host_(host),
      iteration_{params.integer("max_iter"), params.number("tol"), params.number("stability")},
      resolution_(params.integer("gas_boundary_resolution")),
      layer_num_(params.integer("layer_num")),
      layer_name_(params.text("layer_name")),
      verbose_(params.boolean("verbose")),
      start_(std::move(start)) {}

void Eigenvalue::find_blocks(const sdk::Parameters& parameters) {
  std::vector<std::string> names;
  std::vector<std::vector<std::int64_t>> shapes;
  at::Device device = at::kCPU;
  parameters.visit([&](std::string_view name, capstan_tensor tensor, capstan_role role) {
    if (role != CAPSTAN_ROLE_PARAMETER) return;
    names.emplace_back(name);
    shapes.push_back(sdk::borrow(tensor).sizes().vec());
    device = sdk::borrow(tensor).device();
  });
  const auto counts = containers(names);
  const auto found = counts.find(layer_name_);
  if (found == counts.end()) {
    std::string others;
    for (const auto& [name, count] : counts) {
      others += (others.empty() ? " It has '" : ", '") + name + "' (" + std::to_string(count) + ")";
    }
    throw sdk::ConfigMistake(kSection + ".layer_name", "the model has no trained parameter under '" + layer_name_ +
                                                           ".0', so '" + layer_name_ +
                                                           "' is not a container of numbered blocks." +
                                                           (others.empty() ? " It has none at all." : others + "."));
  }
  if (layer_num_ > found->second) {
    throw sdk::ConfigMistake(kSection + ".layer_num", std::to_string(layer_num_) + ", and '" + layer_name_ + "' has " +
                                                          std::to_string(found->second) + ".");
  }
  for (std::int64_t b = 0; b < layer_num_; ++b) {
    Block& block = blocks_.emplace_back();
    block.device = device;
    const std::string prefix = layer_name_ + "." + std::to_string(b) + ".";
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (!names[i].starts_with(prefix)) continue;
      block.names.push_back(names[i]);
      block.shapes.push_back(shapes[i]);
    }
    if (block.names.empty()) {
      throw sdk::ConfigMistake(kSection + ".layer_num",
                               "'" + layer_name_ + "." + std::to_string(b) + "' has no trained parameter.");
    }
  }
}

void Eigenvalue::event(const capstan_event& event, const sdk::Parameters& parameters) {
  if (event.kind == CAPSTAN_EVENT_INITIALIZED) {
    find_blocks(parameters);
    host_.want_curvature();
    if (host_.rank() > 0) return;
    host_.info("eigenvalue: up to " + std::to_string(layer_num_ * iteration_.max_iter) +
               " products with the Hessian of a micro-batch (" + std::to_string(layer_num_) + " blocks, max_iter " +
               std::to_string(iteration_.max_iter) + "), each a backward of a backward, in " +
               (resolution_ == 1 ? "every step" : "one of " + std::to_string(resolution_) + " steps") +
               ", as long as weights have bits to lose.");
  }
  if (event.kind == CAPSTAN_EVENT_UPDATE_BEGIN && event.skipped == 0 && is_due(event)) evaluate(event);
}

bool Eigenvalue::is_due(const capstan_event& event) const {
  return event.global_step % resolution_ == 0 && host_.told("bits that weights have still to lose").value_or(0) > 0;
}

void Eigenvalue::evaluate(const capstan_event& event) {
  Evaluation evaluation;
  std::vector<double> eigenvalues;
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    const auto multiply = [&](const Vector& v) {
      std::vector<capstan_tensor> handles;
      for (const at::Tensor& one : v) handles.push_back(sdk::lend(one));
      Vector products;
      for (const capstan_tensor handle : host_.hessian_vector(blocks_[b].names, handles)) {
        products.push_back(sdk::take(handle));
      }
      return products;
    };
    Vector start = start_(blocks_[b], b, event.global_step);
    for (at::Tensor& one : start) one = one.to(blocks_[b].device);
    evaluation.blocks.push_back(largest_eigenvalue(multiply, std::move(start), iteration_));
    eigenvalues.push_back(evaluation.blocks.back().eigenvalue);
  }
  evaluation.relative = relative_magnitudes(eigenvalues);
  found(event, evaluation);
}

void Eigenvalue::found(const capstan_event& event, const Evaluation& evaluation) {
  relative_ = evaluation.relative;
  tell();
  std::string text;
  for (std::size_t b = 0; b < relative_.size(); ++b) {
    host_.record("Train/Eigenvalues/ModelBlockParam_" + std::to_string(b), relative_[b]);
    text += (b == 0 ? " " : ", ") + layer_name_ + "." + std::to_string(b) + " " +
            shown(evaluation.blocks[b].eigenvalue) + " (" + shown(relative_[b]) + ", " +
            std::to_string(evaluation.blocks[b].products) + " products)";
  }
  if (verbose_ && host_.rank() == 0) {
    host_.info("eigenvalue: step " + std::to_string(event.global_step) + ":" + text + ".");
  }
}

void Eigenvalue::tell() const {
  for (std::size_t b = 0; b < relative_.size(); ++b) {
    for (const std::string& name : blocks_[b].names) host_.tell("eigenvalue of " + name, relative_[b]);
  }
}

void Eigenvalue::save(const sdk::Sink& sink) const {
  std::string text;
  for (const double one : relative_) text += (text.empty() ? "" : ", ") + exactly(one);
  sink.write("{\"relative\": [" + text + "]}");
}

void Eigenvalue::load(const sdk::Document& saved) {
  relative_ = saved.numbers("relative");
  // Of a run with more blocks the first ones count.
  if (relative_.size() > blocks_.size()) relative_.resize(blocks_.size());
  tell();
}

}  // namespace capstan::eigenvalue
