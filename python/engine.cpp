#include "python/engine.hpp"

#include <pthread.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/python_variable.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <typeinfo>
#include <utility>

#include "capstan/layer.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/engine/initialize.hpp"
#include "core/errors.hpp"
#include "core/registry/plugin_call.hpp"
#include "python/interrupts.hpp"

namespace capstan::python {
namespace {

namespace py = pybind11;
using torch::autograd::Node;
using Unlocked = py::gil_scoped_release;

/// How often this process has become another. getpid() is a system call, and a step asks several times.
std::atomic<int> forks = 0;

int forks_so_far() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { ++forks; }); });
  return forks.load(std::memory_order_relaxed);
}

/// The type of such nodes is known to libtorch_python.so alone, so that it can be asked for its name only.
bool is_function_of_python(const Node& node) {
  return std::strcmp(typeid(node).name(), "N5torch8autograd6PyNodeE") == 0;
}

/// Whether backward of `loss` reaches one of the tensors. `if_hidden`: the answer where none was found, and a function
/// of Python's is on the way, which may hide them (reentrant checkpointing).
bool reaches(const at::Tensor& loss, const std::unordered_set<const at::TensorImpl*>& tensors, bool if_hidden) {
  std::vector<Node*> open = {loss.grad_fn().get()};
  if (open.front() == nullptr) return tensors.contains(loss.unsafeGetTensorImpl());
  std::unordered_set<Node*> seen(open.begin(), open.end());
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    if (if_hidden && is_function_of_python(*node)) return true;
    if (const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
      if (tensors.contains(leaf->variable.unsafeGetTensorImpl())) return true;
    }
    for (const auto& edge : node->next_edges()) {
      if (edge.function && seen.insert(edge.function.get()).second) open.push_back(edge.function.get());
    }
  }
  return false;
}

/// Throws RuntimeFault for what is not a scalar tensor of floating point.
const at::Tensor& scalar_loss(py::handle given) {
  if (!THPVariable_Check(given.ptr())) {
    throw RuntimeFault("backward: takes the loss, a scalar tensor, got a " +
                       py::cast<std::string>(py::type::handle_of(given).attr("__name__")) + ".");
  }
  const at::Tensor& loss = THPVariable_Unpack(given.ptr());
  if (loss.numel() != 1) {
    throw RuntimeFault("backward: the loss must be a scalar, got a tensor of shape " + c10::str(loss.sizes()) +
                       ". Reduce it, with mean() for instance.");
  }
  if (!at::isFloatingType(loss.scalar_type())) {
    throw RuntimeFault("backward: the loss must be of floating point, got " +
                       py::cast<std::string>(py::str(given.attr("dtype"))) + ".");
  }
  return loss;
}

void refuse_replaced_parameters(const py::list& holders) {
  for (const py::handle one : holders) {
    const auto holder = py::reinterpret_borrow<py::tuple>(one);
    const auto part = [&](Py_ssize_t index) { return PyTuple_GET_ITEM(holder.ptr(), index); };
    if (PyDict_GetItemWithError(part(0), part(1)) == part(2)) continue;
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    throw RuntimeFault("parameter '" + py::cast<std::string>(part(3)) +
                       "' was replaced after initialize(): the engine trains the tensor that "
                       "the module had then. "
                       "Change values in 'with engine.gather(written_by=0):' instead.");
  }
}

unsigned long main_thread() {
  return py::cast<unsigned long>(py::module_::import("threading").attr("main_thread")().attr("ident"));
}

void put(Batch& batch, const std::string& name, py::handle value) {
  if (THPVariable_Check(value.ptr())) batch.tensors.insert_or_assign(name, THPVariable_Unpack(value.ptr()));
}

/// What has taken the place of an argument; null: nothing.
const at::Tensor* replaced(const Batch& batch, const std::string& name, py::handle value) {
  if (!THPVariable_Check(value.ptr())) return nullptr;
  const auto found = batch.tensors.find(name);
  const bool same = found == batch.tensors.end() || found->second.is_same(THPVariable_Unpack(value.ptr()));
  return same ? nullptr : &found->second;
}

py::tuple changed(const Batch& batch, py::tuple args, const std::vector<std::string>& names) {
  for (std::size_t i = 0; i < args.size() && i < names.size(); ++i) {
    if (const at::Tensor* tensor = replaced(batch, names[i], args[i])) {
      py::list other(args);
      other[i] = py::cast(*tensor);
      args = py::tuple(other);
    }
  }
  return args;
}

}  // namespace

PyEngine::PyEngine(ModuleFacts facts, py::handle module, std::vector<std::string> arguments,
                   const std::vector<std::string>& left_out, const Deferral* deferral, const MakeEngine& make)
    : model_(std::move(facts), module),
      arguments_(std::move(arguments)),
      forks_(forks_so_far()),
      main_thread_(main_thread()) {
  Model model = ModuleModel::model_of(model_);
  model.leave_out(left_out);
  for (const NamedTensor& parameter : model.parameters()) known_.insert(parameter.tensor.unsafeGetTensorImpl());
  if (deferral != nullptr) model.set_deferred(deferral->values());
  try {
    const Unlocked unlocked;
    engine_.emplace(make(std::move(model)));
  } catch (...) {
    model_.rethrow();
    throw;
  }
  living().push_back(this);
}

PyEngine::~PyEngine() {
  std::erase(living(), this);
  end();
}

std::vector<PyEngine*>& PyEngine::living() {
  static std::vector<PyEngine*> engines;
  return engines;
}

bool PyEngine::forked() const { return forks_ != forks.load(std::memory_order_relaxed); }

Engine& PyEngine::engine() {
  if (forked()) {
    throw RuntimeFault(
        "this process was forked from the one that made the "
        "engine (a worker of a DataLoader?): the engine "
        "belongs to that process alone.");
  }
  if (!engine_) throw RuntimeFault("engine.destroy() has ended this engine.");
  return *engine_;
}

void PyEngine::refuse_open_gathers() const {
  if (forked() || !engine_ || engine_->open_gathers() == 0) return;
  throw RuntimeFault(
      "destroy: parameters of this engine are gathered. Leave 'with engine.gather():' or "
      "capstan.zero.GatheredParameters before the engine is destroyed, or initialize() makes another one of its "
      "model.");
}

void PyEngine::destroy() {
  refuse_open_gathers();
  end();
}

void PyEngine::end() {
  if (forked()) return abandon();
  const Unlocked unlocked;
  engine_.reset();
}

namespace {

/// While it lives, a pass of the module, or a backward, is under way.
class Inside {
 public:
  explicit Inside(bool& flag) : flag_(flag), before_(std::exchange(flag, true)) {}
  ~Inside() { flag_ = before_; }
  Inside(const Inside&) = delete;

 private:
  bool& flag_;
  const bool before_;
};

}  // namespace

py::object PyEngine::pass(PassKind kind, py::handle function, py::tuple args, const py::dict& kwargs,
                          const std::vector<std::string>& names) {
  Batch batch;
  for (std::size_t i = 0; i < args.size() && i < names.size(); ++i) put(batch, names[i], args[i]);
  for (const auto& [name, value] : kwargs) put(batch, py::cast<std::string>(name), value);
  py::object result;
  const Inside inside(inside_);
  {
    Engine& engine = this->engine();
    const Unlocked unlocked;
    engine.pass(kind, batch, [&] {
      capstan_error error;
      const sdk::ForwardScope scope(model_host(), &batch, &error);
      const py::gil_scoped_acquire lock;
      args = changed(batch, std::move(args), names);
      for (const auto& [name, value] : kwargs) {
        if (const at::Tensor* tensor = replaced(batch, py::cast<std::string>(name), value)) {
          kwargs[name] = py::cast(*tensor);
        }
      }
      result = py::reinterpret_steal<py::object>(PyObject_Call(function.ptr(), args.ptr(), kwargs.ptr()));
      if (!result) throw py::error_already_set();
    });
  }
  return result;
}

py::object PyEngine::run(py::handle module, py::tuple args, const py::dict& kwargs) {
  if (!at::GradMode::is_enabled()) return pass(PassKind::kEvaluation, module, std::move(args), kwargs, arguments_);
  py::object output = pass(PassKind::kTraining, module, std::move(args), kwargs, arguments_);
  ++forwards_;
  after_backward_ = false;
  return output;
}

py::object PyEngine::evaluate(const py::object& function, const py::tuple& args, const py::dict& kwargs) {
  return pass(PassKind::kEvaluation, function, args, kwargs, {});
}

bool PyEngine::waits_for(const at::Tensor& loss) const {
  if (forwards_ == 0 || in_backward_ || !engine_ || forked() || !loss.requires_grad()) return false;
  return reaches(loss, known_, /*if_hidden=*/false);
}

void PyEngine::refuse_other_engines(const at::Tensor& loss) const {
  for (const PyEngine* other : living()) {
    if (other == this || !other->waits_for(loss)) continue;
    throw RuntimeFault(
        "backward: the loss goes through two engines, and each does backward through its own model alone. Nothing was "
        "computed. Cut the graph between them: x = first(...), leaf = x.detach().requires_grad_(), "
        "second.backward(loss of second(leaf)), first.backward((x * leaf.grad).sum()). Or train both models as one "
        "module in one engine.");
  }
}

void PyEngine::backward(py::handle given, bool over_accumulation, bool retain_graph) {
  const at::Tensor& loss = scalar_loss(given);
  Engine& engine = this->engine();
  if (forwards_ == 0) {
    throw RuntimeFault(
        "backward: this forward has had its backward, or there "
        "was none. Call engine(...) again, or add losses of one "
        "forward up.");
  }
  refuse_other_engines(loss);
  if (loss.requires_grad() && !reaches(loss, known_, /*if_hidden=*/true)) {
    throw RuntimeFault(
        "backward: the loss does not come from this engine's "
        "model: none of its parameters is in the "
        "loss's graph. Make it of what engine(...) returned.");
  }
  if (uncounted_ && !boundary_ && !in_no_sync_) {
    engine.set_accumulation_boundary((micro_steps_ + 1) % engine.config().batch.gradient_accumulation_steps == 0);
  }
  {
    const InterruptsWait interrupts(main_thread_);
    const Inside inside(in_backward_);
    const Unlocked unlocked;
    engine.backward(loss, {.over_accumulation = over_accumulation, .retain_graph = retain_graph});
  }
  forwards_ = 0;
  after_backward_ = true;
}

void PyEngine::step(const py::list& holders, const py::object& updated) {
  refuse_replaced_parameters(holders);
  Engine& engine = this->engine();
  const bool updates = engine.at_accumulation_boundary();
  const InterruptsWait interrupts(main_thread_);
  bool applied = false;
  {
    const Unlocked unlocked;
    applied = engine.step().applied;
  }
  ++micro_steps_;
  after_backward_ = false;
  if (!updates) return;
  if (std::exchange(uncounted_, false)) engine.set_accumulation_boundary(boundary_);
  if (!updated.is_none()) updated(applied);
}

double PyEngine::eval_batch(std::function<at::Tensor()> step, std::int64_t micro_batches, const NextBatch& next) {
  model_.step = std::move(step);
  const Inside inside(inside_);
  try {
    Engine& engine = this->engine();
    const Unlocked unlocked;
    return engine.eval_batch(next, micro_batches);
  } catch (...) {
    model_.rethrow();
    throw;
  }
}

void PyEngine::set_boundary(std::optional<bool> last) {
  engine().set_accumulation_boundary(last);
  boundary_ = last;
}

bool PyEngine::at_boundary() {
  if (boundary_) return *boundary_;
  if (after_backward_) return engine().at_accumulation_boundary();
  return (micro_steps_ + 1) % engine().config().batch.gradient_accumulation_steps == 0;
}

void PyEngine::begin_no_sync() {
  engine().set_accumulation_boundary(false);
  in_no_sync_ = uncounted_ = true;
}

void PyEngine::end_no_sync() {
  in_no_sync_ = false;
  engine().set_accumulation_boundary(boundary_);
}

std::string PyEngine::load_checkpoint(const std::string& dir, const std::string& tag, bool strict,
                                      bool optimizer_states, bool schedule, const py::function& fault_of) {
  Engine& engine = this->engine();
  std::string state;
  const auto check = [&](const Json& client_state) {
    const std::string text = client_state.dump();
    const py::gil_scoped_acquire lock;
    const auto fault = py::cast<std::string>(fault_of(text));
    if (!fault.empty()) throw RuntimeFault(fault);
  };
  {
    const Unlocked unlocked;
    const LoadOptions options{.strict = strict, .optimizer_states = optimizer_states, .schedule = schedule};
    state = engine.load_checkpoint(dir, tag, check, options).dump();
  }
  forwards_ = 0;
  after_backward_ = false;
  micro_steps_ = engine.progress().global_steps * engine.config().batch.gradient_accumulation_steps;
  return state;
}

}  // namespace capstan::python
