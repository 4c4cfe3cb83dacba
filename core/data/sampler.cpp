#include "core/data/sampler.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/errors.hpp"
#include "core/host_words.hpp"

namespace capstan {
namespace {

/// What a sampler fails with is mostly about its files, not about the plugin.
template <class Call>
void call_sampler(PluginFunction function, const std::string& where, Call&& call) {
  try {
    call_plugin(function, where, std::forward<Call>(call));
  } catch (const PluginError& error) {
    throw RuntimeFault(error.what());
  }
}

}  // namespace

Sampler::Sampler(Component component)
    : component_(std::move(component)), where_("sampler '" + component_.manifest().type + "'") {}

void Sampler::start(const Source& source) {
  if (source_) throw RuntimeFault(where_ + ": has been started before.");
  capstan_sampling told{};
  told.struct_size = sizeof told;
  told.samples = source.samples;
  told.batch = source.batch;
  told.seed = source.seed;
  told.fingerprint = as_str(source.fingerprint);
  call_sampler(component_.function("start"), where_,
               [&](capstan_error* error) { return table()->start(component_.self(), &told, error); });
  source_ = source;
  // More than can be counted is no bound.
  if (source.passes > std::numeric_limits<std::int64_t>::max() / source.samples) source_->passes = 0;
  if (waiting_) take(*std::exchange(waiting_, std::nullopt), waiting_step_);
}

std::span<const std::int64_t> Sampler::of_step(std::int64_t global_step) {
  if (!source_) throw RuntimeFault(where_ + ": has not been started. Call " + engine_call("start_sampler") + " first.");
  if (drawn_for_ == global_step) return drawn_;
  if (source_->passes > 0 && (steps_ + 1) * source_->batch > source_->passes * source_->samples) {
    throw RuntimeFault(where_ + ": the data is used up: " + std::to_string(steps_) + " steps of " +
                       std::to_string(source_->batch) + " samples are done, and " + std::to_string(source_->passes) +
                       " passes over " + std::to_string(source_->samples) +
                       " samples have no whole batch left. Raise data_efficiency.data_sampling.num_epochs.");
  }
  drawn_for_.reset();
  drawn_.assign(static_cast<std::size_t>(source_->batch), -1);
  call_sampler(component_.function("next"), where_ + ", step " + std::to_string(steps_),
               [&](capstan_error* error) { return table()->next(component_.self(), steps_, drawn_.data(), error); });
  for (const std::int64_t sample : drawn_) {
    if (sample >= 0 && sample < source_->samples) continue;
    throw PluginError(where_ + ", step " + std::to_string(steps_) + ": gives sample " + std::to_string(sample) +
                      ", and there are " + std::to_string(source_->samples) + ". Ask the plugin's author.");
  }
  ++steps_;
  drawn_for_ = global_step;
  return drawn_;
}

void Sampler::change(Batch& batch) const {
  if (!CAPSTAN_HAS(table(), batch)) return;
  call_plugin(component_.function("batch"), where_,
              [&](capstan_error* error) { return table()->batch(component_.self(), &batch, error); });
}

Sampler::Saved Sampler::save(std::int64_t next_step) const {
  if (waiting_) return *waiting_;
  Saved saved;
  saved.type = component_.manifest().type;
  saved.steps = steps_;
  if (drawn_for_ == next_step) saved.ahead = drawn_;
  // One that has not been started has nothing to tell.
  if (source_ && CAPSTAN_HAS(table(), save)) {
    saved.text = plugin_text(
        component_.function("save"), where_ + ", save",
        [&](capstan_sink* sink, capstan_error* error) { return table()->save(component_.self(), sink, error); });
  }
  return saved;
}

void Sampler::load(const Saved& saved, std::int64_t next_step) {
  if (source_) return take(saved, next_step);
  waiting_ = saved;
  waiting_step_ = next_step;
}

void Sampler::take(const Saved& saved, std::int64_t next_step) {
  const auto is_there = [&](std::int64_t sample) { return sample < source_->samples; };
  if (!saved.ahead.empty() && (static_cast<std::int64_t>(saved.ahead.size()) != source_->batch ||
                               !std::all_of(saved.ahead.begin(), saved.ahead.end(), is_there))) {
    throw RuntimeFault(where_ + ": was saved with a step's samples drawn ahead, " + std::to_string(saved.ahead.size()) +
                       " of them, which do not fit train_batch_size " + std::to_string(source_->batch) +
                       " and a data set of " + std::to_string(source_->samples) + " samples.");
  }
  if (saved.text && CAPSTAN_HAS(table(), load)) {
    call_sampler(component_.function("load"), where_ + ", load",
                 [&](capstan_error* error) { return table()->load(component_.self(), as_str(*saved.text), error); });
  }
  steps_ = saved.steps;
  drawn_ = saved.ahead;
  drawn_for_ = drawn_.empty() ? std::nullopt : std::optional(next_step);
}

}  // namespace capstan
