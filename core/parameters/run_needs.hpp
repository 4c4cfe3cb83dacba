#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "core/parameters/parameter_groups.hpp"
#include "core/registry/manifest.hpp"

// What a configuration and an optimizer's manifest ask of a run: for the engine that trains, and for the plan of what
// that costs.

namespace capstan {

/// The type in which gradients travel between ranks: as told, else the one that the model computes in.
at::ScalarType communication_dtype(const Config& config);

/// Whether a device trains and the optimizer updates in host memory, because its states are offloaded or the optimizer
/// has no kernel for the device.
bool updates_on_host(const Config& config);

/// Whether a device trains and offload_param sends its parameters to host memory.
bool parameters_in_host_memory(const Config& config);

/// Whether a step looks for gradients that are not finite.
bool tests_overflow(const PrecisionConfig& precision);
/// Whether a step needs the norm of its gradients, or reports it.
bool needs_norm(const Config& config);

/// Optimizers; null: none.
bool communicates_by_itself(const ComponentManifest* optimizer);
/// Whether it cannot update a piece of a parameter.
bool needs_whole_parameters(const ComponentManifest* optimizer);
/// Whether the optimizer takes the rows that sparse gradients have.
bool takes_sparse_rows(const ComponentManifest* optimizer);
/// False where ranks go ways of their own and need all of every parameter, so that there is nothing to cut.
bool can_be_partitioned(const ComponentManifest* optimizer);

/// The type in which an optimizer's state is kept. "param" is what the optimizer updates, the master in fp32; a
/// parameter of the optimizer may ask for the compute type, and so does bf16.bf16_optimizer_states.
at::ScalarType state_dtype(const StateSpec& spec, const Config& config);
/// Whether a state is kept in 16 bits and shown to the optimizer in fp32: it takes no 16 bits itself, or they are to be
/// rounded at random.
bool widens_state(const StateSpec& spec, const Config& config);
/// The states that an optimizer declares, with the regular expressions that its parameters give them. Throws
/// ConfigError for one that is none.
std::vector<StateSpec> declared_states(const ComponentManifest& optimizer, const ComponentChoice& choice);
/// Whether a parameter of that name, shape and role, and in that group, has a state.
bool has_state(const StateSpec& spec, const capstan_group& group, const std::string& name, at::IntArrayRef shape,
               capstan_param_role role);
/// Elements of a state of the whole model, which has a place for every element of every parameter, whoever owns it.
/// `numels`: of the trainable parameters.
std::int64_t model_state_numel(const StateSpec& spec, const std::vector<std::int64_t>& numels, int ranks);

}  // namespace capstan
