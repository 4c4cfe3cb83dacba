#pragma once

#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/model/model.hpp"

namespace capstan::python {

/// What a torch.nn.Module shows of itself, read once on the Python side.
struct ModuleFacts {
  std::string description;                                     // its class
  std::vector<std::pair<std::string, at::Tensor>> parameters;  // each tensor once, under its first name
  std::vector<std::pair<std::string, at::Tensor>> buffers;     // the same
  std::vector<std::pair<std::string, std::string>> modules;    // path and class
  std::string facts;                                           // JSON: hidden_size, ...
};

/// A module of Python behind the model's functions. The module itself belongs to the engine's object on the Python
/// side, which outlives this one; called with or without the interpreter's lock.
class ModuleModel {
 public:
  explicit ModuleModel(ModuleFacts facts, pybind11::handle module) : facts_(std::move(facts)), module_(module) {}

  /// What computes the loss of an evaluation's next micro-batch: called with the lock.
  std::function<at::Tensor()> step;
  /// What the module threw in a function that cannot throw it; taken by rethrow().
  std::exception_ptr thrown;
  /// Throws what the module threw, in the place of what the engine made of it.
  void rethrow();

  /// The model of an engine; `self` must outlive it.
  static Model model_of(ModuleModel& self);

 private:
  struct Functions;
  ModuleFacts facts_;
  pybind11::handle module_;
};

}  // namespace capstan::python
