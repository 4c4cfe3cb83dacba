#include "core/keep/saved_run.hpp"

#include <limits>

#include "core/host_tensor.hpp"
#include "core/registry/component_states.hpp"

namespace capstan {
namespace {

/// No run takes as many steps or samples; and a counter times the micro-batches of a step still fits.
constexpr std::int64_t kMostSteps = 1'000'000'000'000, kMostSamples = 1'000'000'000'000'000;

/// The value of a hexadecimal digit; -1: it is none.
int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

at::Tensor bytes_of(const StateReader& state, const std::string& key) {
  const std::string& text = state.text(key);
  at::Tensor bytes = host_empty({static_cast<std::int64_t>(text.size() / 2)}, at::kByte);
  auto* data = bytes.mutable_data_ptr<std::uint8_t>();
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    const int high = digit_value(text[i]), low = digit_value(text[i + 1]);
    if (high < 0 || low < 0) state.refuse(key, "a text of hexadecimal digits");
    data[i / 2] = static_cast<std::uint8_t>(high * 16 + low);
  }
  if (text.size() % 2 != 0) state.refuse(key, "an even number of hexadecimal digits");
  return bytes;
}

std::optional<SavedRun::Component> component(const StateReader& state, const char* key) {
  if (!state.has(key)) return std::nullopt;
  const StateReader members = state.object(key);
  return SavedRun::Component{members.text("type"), members.text("state")};
}

Json component_states(const StateReader& state) {
  Json states = Json::object();
  for (const auto& [name, text] : state.texts()) states[name] = text;
  return states_by_type(states);
}

Sampler::Saved saved_sampler(const StateReader& state) {
  Sampler::Saved saved;
  saved.type = state.text("type");
  saved.steps = state.integer("steps", 0, kMostSteps);
  if (state.has("state")) saved.text = state.text("state");
  if (state.has("ahead")) saved.ahead = state.integers("ahead", 0, kMostSamples);
  return saved;
}

}  // namespace

SavedRun read_saved_run(const StateReader& state) {
  SavedRun run;
  if (state.has("run")) run.run = state.text("run");
  if (state.has("written_by")) run.writer = state.text("written_by");
  run.without_frozen = state.has("without_frozen") && state.integer("without_frozen", 0, 1) == 1;
  run.progress = {state.integer("global_steps", 0, kMostSteps), state.integer("updates", 0, kMostSteps),
                  state.integer("skipped_steps", 0, kMostSteps), 0};
  run.world_size = state.integer("world_size", 1, std::numeric_limits<int>::max());
  const bool ours = run.writer.empty();
  run.counts_samples = ours || state.has("global_samples");
  if (run.counts_samples) run.progress.global_samples = state.integer("global_samples", 0, kMostSamples);
  if (ours || state.has("loss_scaler")) run.loss_scale = LossScaler::read(state.object("loss_scaler"));
  run.starts_optimizer = !ours && run.progress.updates == 0;
  for (const StateReader& group : state.list("groups")) {
    run.base_lrs.push_back(group.number("base_lr"));
    if (!group.has("numbers")) continue;
    if (!run.group_numbers) run.group_numbers.emplace();
    run.group_numbers->resize(run.base_lrs.size());
    run.group_numbers->back() = group.object("numbers").lists_of_numbers();
  }
  run.optimizer = component(state, "optimizer");
  run.scheduler = component(state, "scheduler");
  if (run.scheduler && state.object("scheduler").has("begins_at")) {
    run.schedule_begins_at = state.object("scheduler").integer("begins_at", -kMostSteps, kMostSteps);
  }
  run.observers = component_states(state.object("observers"));
  if (state.has("compressions")) run.compressions = component_states(state.object("compressions"));
  if (state.has("sampler")) run.sampler = saved_sampler(state.object("sampler"));
  if (!ours) return run;
  const StateReader generators = state.object("rng");
  generators.text("cpu");
  for (const auto& [device, digits] : generators.texts()) run.generators[device] = bytes_of(generators, device);
  return run;
}

Json sampler_json(const Sampler::Saved& saved) {
  Json state = Json::object();
  state["type"] = saved.type;
  state["steps"] = saved.steps;
  if (saved.text) state["state"] = *saved.text;
  if (!saved.ahead.empty()) {
    Json ahead = Json::array();
    for (const std::int64_t sample : saved.ahead) ahead.push_back(sample);
    state["ahead"] = std::move(ahead);
  }
  return state;
}

std::string hex_of(const at::Tensor& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  const auto* data = static_cast<const std::uint8_t*>(bytes.const_data_ptr());
  std::string text;
  for (std::int64_t i = 0; i < bytes.numel(); ++i) text += {kDigits[data[i] >> 4], kDigits[data[i] & 15]};
  return text;
}

}  // namespace capstan
