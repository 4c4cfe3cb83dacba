#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "capstan/layer.hpp"
#include "capstan/sdk/model.hpp"
#include "core/engine/engine.hpp"
#include "core/engine/initialize.hpp"
#include "core/registry/guilty_plugin.hpp"
#include "core/run/run.hpp"

/// Training an ordinary torch::nn::Module with Capstan:
///
///   auto net = std::make_shared<Net>();                          // forward(input_ids, labels) gives the loss
///   capstan::Engine engine = capstan::initialize(net, "ds_config.json");
///   engine.train_batch([&] { return next_micro_batch(); });
///
/// Link Capstan::capstan from find_package(Capstan). Where modules are written, include <torch/torch.h> as well: it
/// takes 15 s to read, and what only drives an engine can do without.
namespace capstan {

using sdk::BatchView;

/// What computes the loss of a micro-batch: at::Tensor(M&, const BatchView&).
template <class M>
using Step = typename sdk::ModuleModel<M>::Step;

/// A module as the engine's model. Without `step`, its forward gives the loss and takes either (const BatchView&), or
/// the batch's (input_ids, labels). The module is shared: its parameters are what the engine trains.
template <class M>
Model wrap_module(std::shared_ptr<M> module, Step<M> step) {
  using Self = sdk::Instance<sdk::ModuleModel<M>>;
  std::string name = module->name();
  auto self = std::make_unique<Self>(Self{model_host(), sdk::ModuleModel<M>(std::move(module), std::move(step))});
  return Model(&sdk::ModelThunks<M>::kVtable, self.release(), &sdk::destroy<sdk::ModuleModel<M>>, std::move(name));
}

template <class M>
Model wrap_module(std::shared_ptr<M> module) {
  return wrap_module<M>(std::move(module), &sdk::default_step<M>);
}

/// An engine that trains `module` as the configuration file says, and as the program says where the file has "auto":
///   capstan::initialize(net, "ds_config.json", {{"optimizer.params.lr", 3e-4}})
template <class M>
Engine initialize(std::shared_ptr<M> module, const std::string& config_path, const ProgramValues& program = {}) {
  return initialize(wrap_module(std::move(module)), config_path, program);
}

template <class M>
Engine initialize(std::shared_ptr<M> module, std::type_identity_t<Step<M>> step, const std::string& config_path,
                  const ProgramValues& program = {}) {
  return initialize(wrap_module<M>(std::move(module), std::move(step)), config_path, program);
}

template <class M>
std::shared_ptr<M> module_of(std::shared_ptr<M> module) {
  return module;
}

/// What TORCH_MODULE makes.
template <class H>
concept HoldsModule = requires(const H& holder) {
  { holder.ptr() } -> std::convertible_to<std::shared_ptr<typename H::ContainedType>>;
};

template <HoldsModule H>
auto module_of(const H& holder) {
  return holder.ptr();
}

/// Builds a module, and gives it or its holder.
template <class B>
concept BuildsModule = !HoldsModule<B> && requires(B & build) {
  module_of(build());
};

/// An engine that trains what `build` builds. With ZeRO stage 3 the module never stands whole on a process: its
/// parameters get their values one after the other, the same as ever, and each process keeps its part.
///   capstan::initialize([] { return std::make_shared<Net>(); }, "ds_config.json");
/// `build` may be called a second time; see without_values().
template <BuildsModule B>
Engine initialize(B build, const std::string& config_path, const ProgramValues& program = {}) {
  use_device(config_path, program);  // before the module draws its first values
  return initialize(build_model([&] { return wrap_module(module_of(build())); }), config_path, program);
}

template <BuildsModule B, class S>
Engine initialize(B build, S step, const std::string& config_path, const ProgramValues& program = {}) {
  using M = typename decltype(module_of(build()))::element_type;
  use_device(config_path, program);
  return initialize(build_model([&] { return wrap_module<M>(module_of(build()), step); }), config_path, program);
}

/// The same for the holders that TORCH_MODULE makes.
template <HoldsModule H>
Engine initialize(const H& holder, const std::string& config_path, const ProgramValues& program = {}) {
  return initialize(holder.ptr(), config_path, program);
}

template <HoldsModule H>
Engine initialize(const H& holder, Step<typename H::ContainedType> step, const std::string& config_path,
                  const ProgramValues& program = {}) {
  return initialize(holder.ptr(), std::move(step), config_path, program);
}

}  // namespace capstan
