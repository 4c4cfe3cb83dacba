#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "recorder.hpp"

namespace capstan::profiler {

/// Sums over what ran in a module.
struct Work {
  double flops = 0, macs = 0, latency_ms = 0;
  Work& operator+=(const Work& other) {
    flops += other.flops;
    macs += other.macs;
    latency_ms += other.latency_ms;
    return *this;
  }
};

/// A module with all that is below it: every number but `own_*` covers the children.
struct Module {
  std::string name, path, class_name;  // "fc", "blocks.0.mlp.fc", "Linear"
  double params = 0;
  Work forward, backward;
  Work own_forward, own_backward;  // operators that ran directly in it
  std::vector<std::unique_ptr<Module>> children;
};

/// What is known of a model's shape.
struct ModelShape {
  std::vector<std::pair<std::string, std::string>> modules;      // path, class, in the model's order
  std::vector<std::pair<std::string, std::int64_t>> parameters;  // name, elements
};

/// Where each record ran: the module's path. Operators on a parameter ran in its owner. The others in the innermost
/// module that holds the operators with parameters before and after them, inside the layer that was named, if one was.
/// Nodes of backward where the operator that made them ran.
std::vector<std::string> places_of(const std::vector<OpRecord>& records);

/// The model's tree with the records summed up.
Module module_tree(const ModelShape& shape, const std::vector<OpRecord>& records);

/// Levels of the tree, 1 for a module alone.
int depth_of(const Module& module);

}  // namespace capstan::profiler
