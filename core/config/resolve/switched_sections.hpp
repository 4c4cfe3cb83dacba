#pragma once

#include <cstdint>
#include <span>

#include "core/config/resolve/effective.hpp"
#include "core/registry/plugin_index.hpp"

namespace capstan {

/// A section of the language that a plugin carries out, and the key that switches it on. A switch is on when it is
/// true, above `above`, or an object that is given.
struct SwitchedSection {
  const char* switch_path;  // "compression_training.row_pruning.shared_parameters.enabled"
  const char* section;      // "compression_training.row_pruning"
  const char* kind;         // the kind of the component that carries it out
  bool shipped = false;     // a plugin that comes with Capstan carries it out
  std::int64_t above = 1;
  bool optional = false;  // without a component the key has no effect, which is said, and is no error
};

std::span<const SwitchedSection> switched_sections();

/// A key that stands outside of the section whose component gets it.
struct HandedOn {
  const char* path;     // "capstan.recompute": a key, or an object of keys
  const char* section;  // "activation_checkpointing"
  const char* param;    // the parameter's name; empty: those of the object's keys
};
/// What stands first counts.
std::span<const HandedOn> handed_on();

/// True when its switch is on and no "enabled" of the objects around it is false.
bool is_on(const Effective& values, const SwitchedSection& section);

/// The component that carries a section out: one whose manifest names the section itself, or a section around it.
/// There, a component whose type is the name of a method (row_pruning in compression_training) carries out that method
/// alone, so that several components may share a section. The closest fit wins, then the search path. Null when there
/// is none.
const ComponentManifest* carrier(const PluginIndex& plugins, const SwitchedSection& section);

/// True when a switch of the language may choose the component, whose manifest names a section of the language. The
/// core itself carries out the other sections, and has no switch for them that would choose a plugin.
bool has_switch(const ComponentManifest& component);

}  // namespace capstan
