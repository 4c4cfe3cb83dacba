#include "core/config/resolve/missing.hpp"

#include <string>
#include <vector>

namespace capstan {
namespace {

struct Need {
  const char* path;
  const char* noun;
  const char* alone;   // the whole message when nothing else is missing
  const char* member;  // what to add to the file
  const char* option;  // or to the command line
};

constexpr Need kBatch = {"", "a batch size",
                         "train_batch_size or train_micro_batch_size_per_gpu must be given, for instance --set "
                         "train_micro_batch_size_per_gpu=8.",
                         "\"train_micro_batch_size_per_gpu\": 8", "--set train_micro_batch_size_per_gpu=8"};
constexpr Need kOptimizer = {"", "an optimizer",
                             "there is no optimizer. Add \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": "
                             "0.001}} to the file, or --set "
                             "optimizer.type=AdamW to the command line.",
                             "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.001}}",
                             "--set optimizer.type=AdamW"};
constexpr Need kModel = {
    "capstan.model", "a model",
    "not given. Name a model with --model, for instance --model gpt:tiny, or in the configuration: \"capstan\": "
    "{\"model\": \"gpt:tiny\"}. 'capstan plugins list' shows the models.",
    "\"model\": \"gpt:tiny\"", "--model gpt:tiny"};
constexpr Need kData = {
    "capstan.data.path", "data",
    "not given. Name text files or folders, for instance --data corpus/, or in the configuration: \"capstan\": "
    "{\"data\": {\"path\": \"corpus/\"}}.",
    "\"data\": {\"path\": \"corpus/\"}", "--data corpus/"};
constexpr Need kSteps = {"capstan.run.steps", "a number of steps",
                         "not given. Say how long to train with --steps, for instance --steps 200.",
                         "\"run\": {\"steps\": 200}", "--steps 200"};

bool lacks_batch(const Effective& values) {
  return !values.given("train_batch_size") && !values.given("train_micro_batch_size_per_gpu") &&
         !values.flag("elasticity.enabled");
}

std::vector<const Need*> needs(const Effective& values, const Config& config, const ConfigContext& context) {
  std::vector<const Need*> out;
  if (lacks_batch(values)) out.push_back(&kBatch);
  if (!context.trains_alone) return out;
  if (!values.find("optimizer")) out.push_back(&kOptimizer);
  if (context.check_only) return out;
  if (!values.find("capstan.model")) out.push_back(&kModel);
  if (config.run.data_paths.empty() && !values.given("capstan.data.path")) out.push_back(&kData);
  if (!config.run.steps && !values.given("capstan.run.steps")) out.push_back(&kSteps);
  return out;
}

/// "a, b and c"
std::string joined(const std::vector<std::string>& parts, const char* last) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) text += (i == 0 ? "" : i + 1 == parts.size() ? last : ", ") + parts[i];
  return text;
}

struct Words {
  std::string nouns, members, options;
};

Words words(const std::vector<const Need*>& needs) {
  std::vector<std::string> nouns, members, capstan;
  Words out;
  for (const Need* need : needs) {
    nouns.emplace_back(need->noun);
    const bool own = std::string(need->path).starts_with("capstan.");
    (own ? capstan : members).emplace_back(need->member);
    out.options += std::string(out.options.empty() ? "" : " ") + need->option;
  }
  if (!capstan.empty()) members.push_back("\"capstan\": {" + joined(capstan, ", ") + "}");
  out.nouns = joined(nouns, " and ");
  out.members = joined(members, ", ");
  return out;
}

}  // namespace

void report_missing(const Effective& values, const Config& config, const ConfigContext& context, Problems& problems) {
  const auto missing = needs(values, config, context);
  if (missing.empty()) return;
  const Words all = words(missing);
  if (context.check_only) {
    problems.notice("", all.nouns + " must come from the program that trains; capstan train wants " + all.members +
                            " here, or " + all.options + ".");
    return;
  }
  if (missing.size() > 1) {
    problems.error("", "training needs " + all.nouns + ". Add " + all.members + " to the file, or " + all.options +
                           " to the command line.");
    return;
  }
  const Need& only = *missing.front();
  const bool beside = &only == &kBatch && values.given("gradient_accumulation_steps");
  problems.error(beside ? "gradient_accumulation_steps" : only.path,
                 beside ? "train_batch_size or train_micro_batch_size_per_gpu must be given beside it, for instance "
                          "--set train_micro_batch_size_per_gpu=8."
                        : only.alone);
}

}  // namespace capstan
