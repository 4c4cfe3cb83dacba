#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/schema/schema.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// A state tensor that an optimizer declares and the engine allocates.
struct StateSpec {
  enum class Extent { kShard, kFull, kModel };
  enum class Like { kParameter, kScalar, kShare };

  std::string name;               // "exp_avg"
  Like like = Like::kParameter;   // one value an element, one a slot, or sdk::share_of(elements, world size)
  std::string dtype = "float32";  // float32, bfloat16, float16, int64, or "param": that of the master values
  std::string dtype_from;         // name of a boolean parameter that, when false, makes dtype that of the compute copy
  std::string when;  // name of a parameter: where it is 0 or false in a parameter's group, there is no state
  double init = 0.0;
  Extent extent = Extent::kShard;
  bool reset_on_reshard = false;
  bool per_rank = false;  // every rank has values of its own
  bool scratch = false;   // not saved
};

struct ComponentManifest {
  std::string kind, type;  // "optimizer", "Lion"
  std::vector<std::string> aliases;
  std::string summary;
  std::string device = "cpu";  // the registry's key is (kind, type, device)
  std::vector<KeySpec> params;
  std::vector<StateSpec> state;  // optimizers
  int measures = 0;              // optimizers: partial sums a slot
  std::vector<std::string>
      traits;  // optimizers: what they need of the engine, and cpu, cuda; docs/plugins/optimizer.md
  std::vector<std::string> attach;  // observers: events, weights, operands, layers, batch
  std::string section;              // a section of the configuration that selects this component; may be nested

  bool has_trait(std::string_view trait) const;
  bool attaches(std::string_view place) const;
};

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

  /// Throws PluginError; `where` opens the message.
  static PluginManifest parse(std::string_view toml, const std::string& where);
  Json to_json() const;
};

/// The bytes of a section of an ELF64 file of this machine. Throws PluginError with the sentences of the plugin ABI for
/// files that are not ELF, of another machine, truncated, or without that section.
std::string read_elf_section(const std::filesystem::path& file, std::string_view section);

}  // namespace capstan
