#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config/language/validator.hpp"
#include "core/config/resolve/effective.hpp"
#include "core/config/resolve/switched_sections.hpp"
#include "core/config/typed/config.hpp"
#include "core/registry/plugin_index.hpp"
#include "core/text/problem.hpp"

namespace capstan {

/// Finds the components that a configuration names and checks their parameters against their manifests.
class ComponentChooser {
 public:
  /// `device`: to train on.
  ComponentChooser(const PluginIndex& plugins, std::string device, const Json& document, Effective& values,
                   Validated& validated, Problems& problems)
      : plugins_(plugins),
        device_(std::move(device)),
        document_(document),
        values_(values),
        validated_(validated),
        problems_(problems) {}

  std::optional<ComponentChoice> optimizer();
  /// After the optimizer, whose learning rate it may take.
  std::optional<ComponentChoice> scheduler(const std::optional<ComponentChoice>& optimizer);
  std::optional<ComponentChoice> model();
  /// What capstan.data names.
  std::optional<ComponentChoice> dataset();
  std::optional<ComponentChoice> sampler();
  std::optional<ComponentChoice> pacing();
  /// Of capstan.tuner, else of autotuning.tuner_type; none where one that comes with Capstan is not installed.
  std::optional<ComponentChoice> tuner();
  /// The store of the optimizer's state, and that of parameters.
  std::optional<ComponentChoice> optimizer_offload();
  std::optional<ComponentChoice> parameter_offload();
  /// The store of the inputs of recomputed layers.
  std::optional<ComponentChoice> activation_offload();
  /// The layout that sparse_attention.mode or capstan.attention names, and what computes it on the device.
  std::optional<ComponentChoice> attention();
  std::optional<ComponentChoice> attention_kernel();
  std::vector<ParameterGroupRule> parameter_groups(const std::optional<ComponentChoice>& optimizer);
  /// The kinds that sections choose: those of which a run may have several components, and the sampler.
  struct BySection {
    std::vector<ComponentChoice>&monitors, &observers, &compressions;
    std::optional<ComponentChoice>& sampler;
  };
  /// Sections that plugins own or that want one, and the lists of the section capstan.
  void sections(const BySection& chosen);

 private:
  std::optional<ComponentChoice> choose(const std::string& section, const std::string& kind, Json params_given);
  std::optional<ComponentChoice> choose_at(const Json& entry, const std::string& section, const std::string& kind,
                                           const Json& params_given);
  ComponentChoice section_part(const ComponentManifest& component, const std::string& section,
                               const std::string& where);
  std::optional<ComponentChoice> store(const std::string& own, const std::string& section);
  void say_of_aio(const std::set<std::string>& keys, const std::string& section, std::size_t first);
  Json checked_params(const Json& given, const std::string& path, const ComponentManifest& component);
  void missing(const std::string& where, const std::string& kind, const std::string& type);
  void missing(const std::string& where, const std::string& kind, const std::string& type, const std::string& device);
  void list(const std::string& path, const std::string& kind, std::vector<ComponentChoice>& out);
  const ComponentManifest* owner(std::string_view section) const;
  std::optional<ComponentChoice> known_section(const IndexedPlugin& plugin, const ComponentManifest& component,
                                               bool switched);
  bool is_listed(const ComponentManifest& component) const;
  void missing_section(const SwitchedSection& wanted);
  std::set<const ComponentManifest*> switched_components();
  std::optional<ComponentChoice> foreign_section(const ComponentManifest& component);
  ComponentChoice section_choice(const ComponentManifest& component, const Json& given);
  Json least_warmup() const;
  void schedule_rate(const ComponentChoice& scheduler, const ComponentChoice& optimizer);

  const PluginIndex& plugins_;
  std::string optimizer_device(const std::string& type);

  std::string device_;
  const Json& document_;
  Effective& values_;
  Validated& validated_;
  Problems& problems_;
};

}  // namespace capstan
