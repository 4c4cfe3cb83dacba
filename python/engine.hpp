#pragma once

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/config/config.hpp"
#include "core/engine/engine.hpp"
#include "core/memory/deferred_values.hpp"
#include "core/run/run_parts.hpp"
#include "python/model.hpp"

namespace capstan::python {

/// The values of a module that is built within a `with` statement: capstan.zero.Init.
class Deferral {
 public:
  void enter() { scope_.emplace(*values_); }
  void exit() { scope_.reset(); }
  bool has(const at::Tensor& tensor) const { return values_->has(tensor); }
  void make(const at::Tensor& tensor) { values_->make(tensor); }
  const std::shared_ptr<DeferredValues>& values() const { return values_; }

 private:
  std::shared_ptr<DeferredValues> values_ = std::make_shared<DeferredValues>();
  std::optional<DeferredValues::Scope> scope_;
};

/// One Engine of Python's, with the program's place in a step. Called with the interpreter's lock, which it gives up
/// while the engine works: what a step calls from Python is here rather than in Python, whose time it costs.
class PyEngine {
 public:
  /// `module` belongs to the engine's object of Python's, which outlives this one; `arguments`: the names of its
  /// forward's positional arguments.
  /// `left_out`: parameters that are not to be trained, though they require gradients. `make` makes the engine, and is
  /// called without the interpreter's lock.
  PyEngine(ModuleFacts facts, pybind11::handle module, std::vector<std::string> arguments,
           const std::vector<std::string>& left_out, const Deferral* deferral, const MakeEngine& make);
  ~PyEngine();

  /// Throws RuntimeFault after destroy(), and in a process that was forked from the engine's.
  Engine& engine();
  /// Throws RuntimeFault within gather().
  void destroy();
  /// Throws RuntimeFault where a scope of gather() is open.
  void refuse_open_gathers() const;

  /// Whether a pass of the module is under way.
  bool inside() const { return inside_; }
  /// Calls the module for one micro-batch: in training where gradients are on, else as an evaluation. Observers see
  /// what of the arguments is a tensor, under the names of forward and the keywords, and may change it.
  pybind11::object run(pybind11::handle module, pybind11::tuple args, const pybind11::dict& kwargs);
  /// Calls any function as an evaluation.
  pybind11::object evaluate(const pybind11::object& function, const pybind11::tuple& args,
                            const pybind11::dict& kwargs);
  /// Throws RuntimeFault for a loss that is not of this engine's model alone.
  void backward(pybind11::handle loss, bool over_accumulation, bool retain_graph);
  /// Whether a forward of this engine has had no backward, and the graph of `loss` reaches its parameters.
  bool waits_for(const at::Tensor& loss) const;
  /// `holders`: for each parameter the dict that holds it, its key there, the parameter, and its name. After an update,
  /// and before an interrupt counts, calls `updated(applied)` where that is not None.
  void step(const pybind11::list& holders, const pybind11::object& updated);
  /// `step` computes the loss of the batch that `next` has read.
  double eval_batch(std::function<at::Tensor()> step, std::int64_t micro_batches, const NextBatch& next);

  /// The program's own count of micro-batches, see Engine::set_accumulation_boundary().
  void set_boundary(std::optional<bool> last);
  bool at_boundary();
  /// Between the two micro-batches do not count.
  void begin_no_sync();
  void end_no_sync();
  /// Calls of step() so far.
  std::int64_t micro_steps() const { return micro_steps_; }
  /// `fault_of(client_state)` says, before anything changes, what is wrong with the client state, a text of JSON; "":
  /// nothing is. The flags are the members of LoadOptions.
  std::string load_checkpoint(const std::string& dir, const std::string& tag, bool strict, bool optimizer_states,
                              bool schedule, const pybind11::function& fault_of);

 private:
  static std::vector<PyEngine*>& living();
  void refuse_other_engines(const at::Tensor& loss) const;
  bool forked() const;
  void end();
  /// Leaves the engine as it is: its threads and connections are in another process.
  void abandon() { new std::optional<Engine>(std::move(engine_)); }
  pybind11::object pass(PassKind kind, pybind11::handle function, pybind11::tuple args, const pybind11::dict& kwargs,
                        const std::vector<std::string>& names);

  ModuleModel model_;
  std::vector<std::string> arguments_;
  std::unordered_set<const at::TensorImpl*> known_;  // the parameters
  std::optional<Engine> engine_;
  bool inside_ = false, in_backward_ = false;
  int forks_;                  // before this engine was made
  unsigned long main_thread_;  // the one whose Python code signals interrupt

  int forwards_ = 0;              // those that wait for a backward
  bool after_backward_ = false;   // and before the step() that follows
  std::optional<bool> boundary_;  // what the program says of the next micro-batch
  bool in_no_sync_ = false, uncounted_ = false;
  std::int64_t micro_steps_ = 0;
};

}  // namespace capstan::python
