#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/model/batch.hpp"
#include "core/parameters/parameter_store.hpp"

namespace capstan {

/// Second derivatives of the loss of a step's last micro-batch: its forward is run once more, as it was, and
/// differentiated twice. Behind capstan_host.want_curvature and hessian_vector. [engine]
class Curvature {
 public:
  /// What the engine lends.
  struct Engine {
    std::function<at::Tensor(Batch&)> forward;  // as in training, but for traces, autocast and recomputation
    std::function<std::vector<std::pair<std::string, at::Generator>>()> generators;
    std::vector<at::Tensor> buffers;  // the model's, which a forward may change
    ParameterStore* store = nullptr;
    Communicator* ranks = nullptr;
  };
  /// While it lives, products may be asked for; at its end nothing is left of them, and the buffers are as before.
  class Window {
   public:
    Window(Curvature& curvature, std::string step, double loss_scale);
    ~Window();
    Window(const Window&) = delete;

   private:
    Curvature& curvature_;
  };

  void set_engine(Engine engine) { engine_ = std::move(engine); }
  void want() { wanted_ = true; }
  bool wanted() const { return wanted_; }
  /// Called right before the forward of a step's last micro-batch, with all that it will see.
  void keep(const Batch& batch);
  /// Forgets the micro-batch of a step that was given up.
  void forget() { kept_.reset(); }

  /// As capstan_host.hessian_vector. Throws RuntimeFault, which names an operator that has no second derivative.
  std::vector<at::Tensor> product(const std::vector<std::string>& parameters, const std::vector<at::Tensor>& v);

 private:
  using GeneratorStates = std::vector<at::Tensor>;
  struct Kept {
    Batch batch;
    GeneratorStates generators;
  };
  class GeneratorScope;

  void run_forward();
  void differentiate(const std::vector<std::string>& parameters);
  std::vector<at::Tensor> multiply(const std::vector<at::Tensor>& v);
  at::Tensor mean_over_ranks(const std::vector<at::Tensor>& values) const;
  void close();

  Engine engine_;
  bool wanted_ = false;
  std::optional<Kept> kept_;
  // Within a window:
  bool open_ = false;
  std::string step_;
  double scale_ = 1;                // of the loss
  at::Tensor loss_;                 // with its graph
  std::vector<std::string> names_;  // of the parameters that were differentiated by
  std::vector<at::Tensor> parameters_, gradients_;
  std::vector<at::Tensor> buffers_;  // the values of the engine's buffers before the forward
};

}  // namespace capstan
