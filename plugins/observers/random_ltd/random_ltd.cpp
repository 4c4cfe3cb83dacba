#include "random_ltd.hpp"

#include <ATen/core/Tensor.h>

#include <sstream>
#include <utility>

#include "capstan/sdk/aten.hpp"
#include "capstan/sdk/config_mistake.hpp"

namespace capstan::random_ltd {
namespace {

constexpr const char* kSection = "/data_routing/random_ltd/";
constexpr const char* kPositionIds = "position_ids";

std::string key(const char* name) { return kSection + std::string(name); }
/// The path of a key in the configuration, for messages.
std::string at(const char* name) { return std::string("data_efficiency.data_routing.random_ltd.") + name; }

std::vector<std::int64_t> layer_ids(const sdk::Params& params) {
  std::vector<std::int64_t> ids;
  for (const double id : params.numbers(key("random_ltd_layer_id"))) ids.push_back(static_cast<std::int64_t>(id));
  return ids;
}

std::string shown(at::IntArrayRef shape) {
  std::ostringstream out;
  out << shape;
  return out.str();
}

}  // namespace

RandomLtd::RandomLtd(sdk::Host host, const sdk::Params& params, ChoosePositions choose)
    : host_(host),
      choose_(std::move(choose)),
      ids_(layer_ids(params)),
      total_layers_(params.integer(key("total_layer_num"))),
      mask_name_(params.has(key("model_mask_name")) ? params.text(key("model_mask_name")) : ""),
      encoder_(params.text(key("model_type")) == "encoder"),
      order_(params.text(key("hidden_state_order")) == "seq_batch_dim" ? Order::kSeqBatch : Order::kBatchSeq),
      schedule_(params, key("random_ltd_schedule")) {}

void RandomLtd::event(const capstan_event& event) {
  switch (event.kind) {
    case CAPSTAN_EVENT_INITIALIZED:
      find_layers();
      break;
    case CAPSTAN_EVENT_STEP_END:
      consumed_before_ = consumed_;
      if (!ran_ && wrapped_.count() > 0) {
        throw sdk::Error("random_ltd_layer_id: none of " + wrapped_.listed() +
                         " ran through capstan::layer in the first step, so no token can be dropped. The model's "
                         "author has to call its layers through capstan::layer.");
      }
      break;
    default:
      break;
  }
}

void RandomLtd::find_layers() {
  if (ids_.empty()) return;
  const std::vector<std::string> names = host_.layer_names();
  if (names.empty()) {
    throw sdk::ConfigMistake(at("total_layer_num"),
                             "the model has no layers that could drop tokens: it neither lists \"layer_names\" in its "
                             "description nor numbers modules of one class from 0.");
  }
  sdk::ConfigMistakes mistakes;
  if (static_cast<std::int64_t>(names.size()) != total_layers_) {
    mistakes.add(at("total_layer_num"), std::to_string(total_layers_) + ", but the model has " +
                                            std::to_string(names.size()) + " layers, '" + names.front() + "' to '" +
                                            names.back() + "'.");
  }
  mistakes.gather([&] { wrapped_ = WrappedLayers(names, ids_); });
  mistakes.throw_if_any();
}

void RandomLtd::batch(sdk::Batch& batch) {
  choice_.step = static_cast<std::int64_t>(batch.number("global_step").value_or(0));
  choice_.micro_step = static_cast<std::int64_t>(batch.number("micro_step").value_or(0));
  batch.each_tensor([&](std::string_view name, capstan_tensor tensor) {
    if (name == "sample_position") choice_.samples = sdk::borrow(tensor).cpu().contiguous();
  });
  if (!choice_.samples.defined()) return;  // an empty batch
  choice_.keep = schedule_.update(choice_.step);
  // Micro-batches and ranks have equally many samples. A micro-batch, or a step, that is given up and done again counts
  // once.
  const std::int64_t samples = (choice_.micro_step + 1) * choice_.samples.numel() * host_.world_size();
  consumed_ = consumed_before_ + samples * layer_tokens();
  host_.record("Train/Samples/random_ltd_kept", static_cast<double>(choice_.keep));
  host_.record("Train/Samples/consumed_layer_tokens", static_cast<double>(consumed_));
}

/// What the layers compute with for one sample.
std::int64_t RandomLtd::layer_tokens() const {
  return schedule_.current() * wrapped_.count() + schedule_.maximum() * (total_layers_ - wrapped_.count());
}

capstan_tensor RandomLtd::layer(sdk::LayerRun& run) {
  const auto place = wrapped_.place(run.index());
  if (!place) return run.run(run.hidden());
  ran_ = true;
  const at::Tensor hidden = sdk::borrow(run.hidden());
  const std::int64_t tokens = extent(hidden).tokens;
  warn_of_short_sequence(run, tokens);
  if (!mask_name_.empty() && run.argument(mask_name_) == nullptr) {
    throw sdk::ConfigMistake(at("model_mask_name"),
                             "the layer takes no argument '" + mask_name_ +
                                 "'. Name the one that is its mask, or null where layers take none.");
  }
  if (choice_.keep >= tokens) return run.run(run.hidden());

  const at::Tensor kept = positions(hidden, *place, tokens);
  const at::Tensor mask = mask_name_.empty() ? at::Tensor() : cut_mask(run, kept, tokens);
  if (mask.defined()) run.replace(mask_name_, sdk::lend(mask));
  at::Tensor places;
  if (const capstan_tensor given = run.argument(kPositionIds)) {
    places = sdk::borrow(given).expand({kept.size(0), tokens}).gather(1, kept);
    run.replace(kPositionIds, sdk::lend(places));
  }
  const KeptTokens gathered(hidden, kept, order_);
  return sdk::give(gathered.scatter(sdk::take(run.run(sdk::lend(gathered.gathered())))));
}

RandomLtd::Extent RandomLtd::extent(const at::Tensor& hidden) const {
  const bool batch_first = order_ == Order::kBatchSeq;
  const std::int64_t samples = choice_.samples.numel();
  if (hidden.dim() < 3 || hidden.size(batch_first ? 0 : 1) != samples) {
    throw sdk::ConfigMistake(at("hidden_state_order"),
                             "by \"" + std::string(batch_first ? "batch_seq_dim" : "seq_batch_dim") +
                                 "\" the hidden states " + shown(hidden.sizes()) + " would have the " +
                                 std::to_string(samples) + " samples of the batch in their " +
                                 (batch_first ? "first" : "second") + " of three dimensions.");
  }
  return {samples, hidden.size(batch_first ? 1 : 0)};
}

/// Shorter batches are no mistake where samples differ in length, so this does not end the run.
void RandomLtd::warn_of_short_sequence(const sdk::LayerRun& run, std::int64_t tokens) {
  if (warned_ || host_.rank() > 0 || tokens >= schedule_.maximum() || run.batch().number("curriculum_seqlen")) return;
  warned_ = true;
  host_.warning("random_ltd_schedule.max_value: " + std::to_string(schedule_.maximum()) +
                " is above the sequence length, " + std::to_string(tokens) +
                ": no token is dropped from the step on in "
                "which as many are kept, and consumed_layer_tokens counts too many.");
}

at::Tensor RandomLtd::positions(const at::Tensor& hidden, std::uint32_t place, std::int64_t tokens) const {
  TokenChoice choice = choice_;
  choice.layer = place;
  choice.tokens = tokens;
  return choose_(choice).to(hidden.device());
}

at::Tensor RandomLtd::cut_mask(const sdk::LayerRun& run, const at::Tensor& positions, std::int64_t tokens) const {
  const at::Tensor& mask = sdk::borrow(run.argument(mask_name_));
  return encoder_ ? rows_and_columns(mask, positions, tokens) : corner(mask, tokens, positions.size(1));
}

void RandomLtd::save(const sdk::Sink& sink) const {
  sink.write("{\"consumed_layer_tokens\": " + std::to_string(consumed_) +
             ", \"current_value\": " + std::to_string(schedule_.current()) + "}");
}

void RandomLtd::load(const sdk::Document& saved) {
  consumed_ = consumed_before_ = saved.integer("consumed_layer_tokens");
  schedule_.restore(saved.integer("current_value"));
}

}  // namespace capstan::random_ltd
