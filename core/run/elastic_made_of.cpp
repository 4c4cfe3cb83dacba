#include "core/run/elastic_made_of.hpp"

#include <link.h>

#include <sstream>
#include <vector>

#include "core/registry/build_id.hpp"
#include "core/registry/registry.hpp"
#include "core/version.hpp"

namespace capstan {
namespace {

constexpr const char *kProgram = "Capstan", *kTorch = "LibTorch", *kConfiguration = "the configuration",
                     *kModel = "the model";

/// The files of Capstan that this process runs.
std::vector<std::string> program_files() {
  std::vector<std::string> files{"/proc/self/exe"};
  const auto add = [](dl_phdr_info* info, std::size_t, void* to) {
    const std::string file = info->dlpi_name;
    if (file.ends_with("/libcapstan.so") || file.ends_with("/libcapstan_config.so")) {
      static_cast<std::vector<std::string>*>(to)->push_back(file);
    }
    return 0;
  };
  dl_iterate_phdr(add, &files);
  return files;
}

}  // namespace

std::string running_program() {
  std::string builds = version();
  for (const std::string& file : program_files()) builds += " " + build_id_of(file);
  return builds;
}

namespace {

std::string libtorch() {
  const TorchIdentity torch = running_torch();
  return torch.version + " (build " + torch.build_id + ")";
}

void add_plugins(Json& made_of, const LoadedConfig& loaded) {
  const auto add = [&](const ComponentChoice& choice) {
    const ComponentRef found = loaded.plugins.find(choice.kind, choice.type, choice.device);
    if (!found) return;
    made_of["the plugin '" + found.plugin->manifest.name + "'"] = build_id_of(found.plugin->file.string());
  };
  const Config& config = loaded.config;
  for (const auto* choice :
       {&config.run.model, &config.run.dataset, &config.run.sampler, &config.optimizer, &config.scheduler,
        &config.optimizer_offload, &config.parameter_offload, &config.attention_kernel}) {
    if (*choice) add(**choice);
  }
  for (const ComponentChoice& choice : config.compressions) add(choice);
}

std::string description_of(const Model& model) {
  std::ostringstream out;
  out << model.description();
  for (const NamedTensor& parameter : model.parameters()) {
    out << "\n" << parameter.name << ' ' << parameter.tensor.dtype().name() << ' ' << parameter.tensor.sizes();
  }
  return out.str();
}

/// Another number of processes is no other configuration.
Json configuration(const Config& config) {
  Json json = config.effective;
  for (const char* key : {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}) {
    json.erase(key);
  }
  return json;
}

/// "a, b and c".
std::string listed(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t k = 0; k < words.size(); ++k) {
    text += (k == 0 ? "" : k + 1 == words.size() ? " and " : ", ") + words[k];
  }
  return text;
}

/// Members of either that are not the same in both, in their order.
std::vector<std::string> differing(const Json& first, const Json& second) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : first.as_object()) {
    const Json* other = second.find(key);
    if (other == nullptr || !(*other == value)) keys.push_back(key);
  }
  for (const auto& [key, value] : second.as_object()) {
    if (first.find(key) == nullptr) keys.push_back(key);
  }
  return keys;
}

/// "LibTorch (2.11.0, which was 2.10.0)", "the configuration (elasticity, optimizer)".
std::string change(const std::string& what, const Json& then, const Json& now) {
  if (what == kModel) return what;
  if (what == kConfiguration) {
    std::string sections;
    for (const std::string& key : differing(then, now)) sections += (sections.empty() ? "" : ", ") + key;
    return what + " (" + sections + ")";
  }
  const auto text = [](const Json& value) { return value.is_string() ? value.as_string() : std::string("absent"); };
  return what + " (" + text(now) + ", which was " + text(then) + ")";
}

}  // namespace

Json made_of(const LoadedConfig& loaded, const Model& model) {
  Json json = Json::object();
  json[kProgram] = running_program();
  json[kTorch] = libtorch();
  add_plugins(json, loaded);
  json[kConfiguration] = configuration(loaded.config);
  json[kModel] = description_of(model);
  return json;
}

std::string changes_since(const Json& the_launch_began, const Json& now) {
  std::vector<std::string> changes;
  for (const std::string& what : differing(the_launch_began, now)) {
    const Json *then = the_launch_began.find(what), *own = now.find(what);
    changes.push_back(change(what, then ? *then : Json(), own ? *own : Json()));
  }
  return changes.empty() ? "" : listed(changes) + (changes.size() == 1 ? " has" : " have");
}

}  // namespace capstan
