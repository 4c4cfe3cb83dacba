#include <string>

#include "capstan/sdk/observer.hpp"
#include "plugins/data/common/difficulty_schedule.hpp"
#include "plugins/data/common/sequence_length.hpp"

namespace {

namespace sdk = capstan::sdk;

constexpr const char* kMetric = "seqlen";

/// The section curriculum_learning: training begins with short sequences. What lies behind the difficulty of the step
/// is cut off each sample; models see the number "curriculum_seqlen", as DeepSpeed's do.
class CurriculumLearning {
 public:
  CurriculumLearning(sdk::Host host, const sdk::Params& params)
      : host_(host), schedule_(params, "", [host](std::int64_t step) { return host.difficulty(kMetric, step); }) {}

  void batch(sdk::Batch& batch) {
    // The engine counts the steps that are done.
    const auto step = static_cast<std::int64_t>(batch.number("global_step").value_or(0)) + 1;
    const std::int64_t length = schedule_.update(step);
    if (length < 1) {
      throw sdk::Error("curriculum_learning: the difficulty of step " + std::to_string(step) + " is " +
                       std::to_string(length) + ", and a sequence needs a token. Raise min_difficulty.");
    }
    batch.set_number("curriculum_seqlen", static_cast<double>(length));
    host_.record("Train/Samples/curriculum_difficulty", static_cast<double>(length));
    capstan::data::SequenceLength(batch).cut(length);
  }

  void save(const sdk::Sink& sink) {
    sink.write("{\"current_difficulty\": " + std::to_string(schedule_.current()) + "}");
  }
  void load(const sdk::Document& saved) { schedule_.restore(saved.integer("current_difficulty")); }

 private:
  sdk::Host host_;
  capstan::data::DifficultySchedule schedule_;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::observer<CurriculumLearning, "curriculum_learning">)
