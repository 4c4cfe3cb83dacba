#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/plugin.h"
#include "core/schema/param_rule.hpp"
#include "core/schema/schema.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// A state tensor that an optimizer declares and the engine allocates.
struct StateSpec {
  enum class Extent { kShard, kFull, kModel };
  enum class Like { kParameter, kScalar, kShare, kBlock, kRow, kColumn };
  /// Parts of a parameter begin at multiples of so many elements, so that no block is in two of them.
  static constexpr std::int64_t kLargestBlock = 32768;

  std::string name;  // "exp_avg"
  // One value an element, one a slot, sdk::share_of(elements, world size), one a block; for whole parameters, one a row
  // along the last dimension, one a column along the last but one.
  Like like = Like::kParameter;
  std::int64_t block = 0;         // kBlock: elements that share a value, a power of two
  std::string dtype = "float32";  // float32, bfloat16, float16, int64, uint8, int8, or "param": that of the masters
  std::string dtype_from;         // name of a boolean parameter that, when false, makes dtype that of the compute copy
  std::string when;  // name of a parameter: where it is 0 or false in a parameter's group, there is no state
  // Parameters that do not fit all of what follows have no state either.
  std::vector<std::int64_t> when_dims;                          // numbers of dimensions; empty: any
  std::vector<capstan_param_role> when_roles;                   // what the parameter is to its model; empty: anything
  std::string when_names;                                       // name of a parameter with regular expressions
  std::vector<std::string> name_patterns;                       // those, once a configuration is known; one must match
  std::int64_t when_min_numel = 0, when_max_numel = INT64_MAX;  // elements of the whole parameter
  double init = 0.0;
  bool init_param = false;  // it begins as the master values that the first update finds
  Extent extent = Extent::kShard;
  bool reset_on_reshard = false;
  bool per_rank = false;  // every rank has values of its own
  bool scratch = false;   // not saved

  bool is_integral() const;
  /// One value a row, or a column: for whole parameters of two dimensions or more.
  bool is_factor() const { return like == Like::kRow || like == Like::kColumn; }
  /// Values for `elements` of a parameter of that shape, which begin at a multiple of kLargestBlock; for a
  /// factor all of its elements, or none. Not for kShare.
  std::int64_t values_for(std::int64_t elements, std::span<const std::int64_t> shape) const;
  /// Whether a parameter of that name, shape and role may have it, whatever its group says.
  bool is_for(const std::string& parameter, std::span<const std::int64_t> shape, capstan_param_role role) const;
};

struct ComponentManifest {
  std::string kind, type;  // "optimizer", "Lion"
  std::vector<std::string> aliases;
  std::string summary;
  std::string device = "cpu";  // that it is made for: "cpu", the type of an accelerator, or kAnyDevice
  std::vector<KeySpec> params;
  std::vector<ParamRule> rules;  // between parameters
  std::vector<StateSpec> state;  // optimizers
  int measures = 0;              // optimizers: partial sums a slot
  int measures_model = 0;        // optimizers: sums over the whole model
  std::vector<std::string>
      traits;  // optimizers: what they need of the engine, and cpu, cuda; docs/reference/plugins/optimizer.md
  std::vector<std::string> attach;       // observers: events, layers, batch
  int layer_order = 50;                  // observers of layers: those of lower numbers lie around the others
  int order = 50;                        // compressions: those of lower numbers come first
  std::vector<std::string> model_types;  // models: "model_type"s of config.json that the parameter `config` takes
  std::string section;                   // a section of the configuration that selects this component; may be nested
  std::string python_package;  // what the Python that it starts must have: "wandb", "wandb>=0.16.0"; may be empty

  /// Of a component that computes by LibTorch's operators alone, or on no tensor: `devices = "any"` in the manifest.
  static constexpr const char* kAnyDevice = "any";
  bool runs_on(std::string_view on) const { return device == on || device == kAnyDevice; }

  bool has_trait(std::string_view trait) const;
  bool attaches(std::string_view place) const;
  bool takes_model_type(std::string_view model_type) const;
  /// Its type or an alias, in any letter case.
  bool answers_to(std::string_view name) const;
  /// The states, with the regular expressions that these values of the parameters give them.
  std::vector<StateSpec> states_with(const Json& values) const;
};

/// The keys that the reader of manifests knows: by table ("", "components[]", "components[].params.*"), then key, with
/// the values that are words.
using ManifestVocabulary = std::map<std::string, std::map<std::string, std::set<std::string>>>;

/// What a plugin says of itself, read from its ELF section .capstan.manifest without running any of it.
struct PluginManifest {
  std::string name, version, vendor, license, url;
  std::uint32_t abi_major = 0, abi_minor = 0;
  enum class Tier { kNone, kStable, kPinned };  // none: uses no LibTorch at all
  Tier tier = Tier::kStable;
  std::string torch_min;       // stable
  std::string torch_version;   // pinned
  std::string torch_build_id;  // pinned
  std::string cuda;            // pinned, where built for CUDA
  std::vector<ComponentManifest> components;
  std::string text;  // the bytes of the section, without the closing zero

  std::vector<std::string> warnings;  // "manifest:8:1: components[0].traits: ..."

  /// Throws PluginError with everything that is wrong, one line for each; `where` opens the message. `vocabulary`,
  /// where given, becomes the keys and values that the reader looked for in this manifest.
  static PluginManifest parse(std::string_view toml, const std::string& where,
                              ManifestVocabulary* vocabulary = nullptr);
  Json to_json() const;
};

/// The bytes of a section of an ELF64 file of this machine. Throws PluginError with the sentences of the plugin ABI for
/// files that are not ELF, of another machine, truncated, or without that section.
std::string read_elf_section(const std::filesystem::path& file, std::string_view section);

/// The libraries that such a file loads by itself, "libtorch_cpu.so", in its order. Throws as read_elf_section.
std::vector<std::string> needed_libraries(const std::filesystem::path& file);

}  // namespace capstan
