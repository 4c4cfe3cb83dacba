// step_optimizer FILE: steps each optimizer of a plugin 20 times and prints a hash of all bytes of its parameter and
// states. A whole host in one file, which includes nothing of ours but the ABI, so that it can be compiled against any
// LibTorch: scripts/probe_newest_torch compares what it prints.
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/plugin.h"

struct capstan_error {
  std::string text;
};

struct capstan_group {};

namespace {

constexpr std::int64_t kElements = 10'000;

std::string_view view(capstan_str text) { return {text.data, text.size}; }

/// Lists for what optimizers read as lists; small numbers that all of them take for the rest.
std::vector<double> numbers(std::string_view name) {
  static const std::map<std::string_view, std::vector<double>> kNumbers = {
      {"lr", {1e-3}},         {"betas", {0.9, 0.999}},
      {"eps", {1e-8}},        {"weight_decay", {0.01}},
      {"momentum", {0.9}},    {"alpha", {0.99}},
      {"rho", {0.9}},         {"max_coeff", {10.0}},
      {"min_coeff", {0.01}},  {"lambd", {1e-4}},
      {"t0", {1e6}},          {"momentum_decay", {0.004}},
      {"etas", {0.5, 1.2}},   {"step_sizes", {1e-6, 50.0}},
      {"adam_w_mode", {1.0}}, {"bias_correction", {1.0}}};
  const auto found = kNumbers.find(name);
  return found == kNumbers.end() ? std::vector<double>{0.0} : found->second;
}

capstan_host make_probe_host() {
  capstan_host host{};
  host.struct_size = sizeof host;
  host.abi_major = CAPSTAN_ABI_MAJOR;
  host.abi_minor = CAPSTAN_ABI_MINOR;
  host.world_size = 1;
  host.set_error = [](capstan_error* error, capstan_str text) { error->text = std::string(view(text)); };
  host.log = [](void*, int, capstan_str) {};
  host.json_number = [](capstan_str, capstan_str pointer, double* out, capstan_error*) {
    const std::string_view path = view(pointer).substr(1);
    const auto slash = path.find('/');
    const std::size_t index = slash == path.npos ? 0 : static_cast<std::size_t>(path[slash + 1] - '0');
    *out = numbers(path.substr(0, slash)).at(index);
    return CAPSTAN_OK;
  };
  host.json_text = [](capstan_str, capstan_str, void* ctx, void (*take)(void*, capstan_str), capstan_error*) {
    take(ctx, {"", 0});
    return CAPSTAN_OK;
  };
  host.json_size = [](capstan_str, capstan_str pointer, std::size_t* out, capstan_error*) {
    const auto found = numbers(view(pointer).substr(1));
    *out = found == std::vector<double>{0.0} ? 0 : found.size();
    return CAPSTAN_OK;
  };
  host.group_numbers = [](const capstan_group*, capstan_str name, double* out, std::size_t count,
                          capstan_error* error) {
    const auto found = numbers(view(name));
    if (found.size() != count) {
      error->text = std::string(view(name)) + ": another count";
      return CAPSTAN_FAILED;
    }
    std::copy(found.begin(), found.end(), out);
    return CAPSTAN_OK;
  };
  return host;
}

/// A tensor for each of the manifest's state entries of one component: its shape and type, as far as optimizers care.
std::vector<at::Tensor> make_states(std::string_view manifest, std::string_view type) {
  std::vector<at::Tensor> states;
  const auto component = manifest.find("type = \"" + std::string(type) + "\"");
  const auto end = std::min(manifest.find("[[components]]", component), manifest.size());
  const std::string_view text = manifest.substr(component, end - component);
  for (auto at = text.find("{name = "); at != text.npos; at = text.find("{name = ", at + 1)) {
    const std::string_view entry = text.substr(at, text.find('}', at) - at);
    const bool whole = entry.find("int64") != entry.npos;
    states.push_back(at::zeros({entry.find("scalar") != entry.npos ? 1 : kElements},
                               at::TensorOptions().dtype(whole ? at::kLong : at::kFloat)));
  }
  return states;
}

void check(capstan_status status, const capstan_error& error, const std::string& what) {
  if (status == CAPSTAN_OK) return;
  std::fprintf(stderr, "%s: %s\n", what.c_str(), error.text.c_str());
  std::exit(1);
}

void hash_bytes(std::uint64_t& hash, const at::Tensor& tensor) {
  const auto* bytes = static_cast<const unsigned char*>(tensor.data_ptr());
  for (std::size_t i = 0; i < tensor.nbytes(); ++i) hash = (hash ^ bytes[i]) * 1099511628211u;  // FNV-1a
}

std::uint64_t step(const capstan_component& component, const capstan_host& host, std::string_view manifest) {
  const std::string type(view(component.type));
  capstan_error error;
  void* self = nullptr;
  check(component.create(&host, {"{}", 2}, &self, &error), error, type);
  const auto& table = *static_cast<const capstan_optimizer*>(component.vtable);

  std::vector<at::Tensor> tensors = {at::zeros({kElements}), at::zeros({kElements})};
  for (at::Tensor& state : make_states(manifest, type)) tensors.push_back(std::move(state));
  std::vector<capstan_tensor> handles;
  for (at::Tensor& tensor : tensors) handles.push_back(reinterpret_cast<capstan_tensor>(&tensor));
  const std::int64_t shape[] = {100, 100};
  capstan_slot slot{};
  slot.struct_size = sizeof slot;
  slot.name = {"w", 1};
  slot.param = handles[0];
  slot.grad = handles[1];
  slot.state = handles.data() + 2;
  slot.numel = slot.full_numel = kElements;
  slot.full_shape = shape;
  slot.full_dims = 2;
  slot.state_count = handles.size() - 2;
  const capstan_slot* slots[] = {&slot};
  const capstan_group group;
  const capstan_group* groups[] = {&group};

  std::uint64_t random = 1;
  for (std::int64_t update = 0; update < 20; ++update) {
    float* gradient = tensors[1].data_ptr<float>();
    for (std::int64_t i = 0; i < kElements; ++i) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      gradient[i] = static_cast<float>(static_cast<std::int64_t>(random) >> 40) / 8388608.0f;
    }
    capstan_step step{};
    step.struct_size = sizeof step;
    step.update_index = update;
    step.grad_scale = 0.5;
    step.groups = groups;
    step.group_count = 1;
    std::vector<double> totals(64, 1.0);
    if (table.measure) {
      check(table.measure(self, slots, 1, &step, totals.data(), &error), error, type);
    }
    check(table.update(self, slots, 1, &step, totals.data(), &error), error, type);
  }
  component.destroy(self);
  std::uint64_t hash = 14695981039346656037u;
  for (const at::Tensor& tensor : tensors) hash_bytes(hash, tensor);
  return hash;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  const auto entry = reinterpret_cast<const capstan_plugin* (*)()>(dlsym(library, "capstan_plugin_v1"));
  const capstan_plugin* plugin = entry();
  const capstan_host host = make_probe_host();
  for (std::size_t i = 0; i < plugin->component_count; ++i) {
    const capstan_component& component = *plugin->components[i];
    std::printf("%.*s %016llx\n", static_cast<int>(component.type.size), component.type.data,
                static_cast<unsigned long long>(step(component, host, plugin->manifest)));
  }
}
