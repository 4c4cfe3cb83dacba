#include "cli/foreign_options.hpp"

#include <algorithm>
#include <utility>

#include "core/config/language/foreign_keys.hpp"
#include "core/config/language/language.hpp"
#include "core/errors.hpp"
#include "core/text/json.hpp"

namespace capstan::cli {
namespace {

/// Options that no key of the configuration stands for. %s: the value that was given, else the word behind the colon.
struct Direct {
  std::string_view name;
  const char* advice;
  const char* value = "";
};

constexpr const char* kConfig = " Write --config %s.";
constexpr const char* kProcesses = " Write capstan launch -n %s train .. to train in several processes.";
constexpr const char* kResume = " Write --resume %s.";
constexpr const char* kData = " Write --data %s: a file or a folder of text or tokens.";
constexpr const char* kEvalData = " Write --eval-data %s: a file or a folder of text or tokens.";
constexpr const char* kModel = " Write --model TYPE:SIZE, and --init-from %s for weights of transformers.";
constexpr const char* kRank = " Leave it out: the environment variables RANK, LOCAL_RANK and WORLD_SIZE tell the rank.";
constexpr const char* kLaunch =
    " It is a launcher's: 'capstan launch -n N train ..' starts the processes of one host; torchrun --no-python, "
    "mpirun or srun start those of several.";
// clang-format off
constexpr Direct kDirect[] = {
    {"deepspeed", kConfig, "ds_config.json"}, {"deepspeed_config", kConfig, "ds_config.json"},
    {"ds_config", kConfig, "ds_config.json"}, {"config_file", kConfig, "ds_config.json"},
    {"num_gpus", kProcesses, "2"}, {"nproc_per_node", kProcesses, "2"}, {"num_processes", kProcesses, "2"},
    {"n", kProcesses, "2"}, {"n_gpus", kProcesses, "2"}, {"gpus", kProcesses, "2"},
    {"resume_from_checkpoint", kResume, "DIR"}, {"load", kResume, "DIR"}, {"load_dir", kResume, "DIR"},
    {"train_file", kData, "FILE"}, {"dataset", kData, "FILE"}, {"dataset_name", kData, "FILE"},
    {"data_dir", kData, "DIR"}, {"train_data", kData, "FILE"},
    {"validation_file", kEvalData, "FILE"}, {"eval_file", kEvalData, "FILE"}, {"do_eval", " Write --eval-data FILE."},
    {"model_name_or_path", kModel, "FOLDER"}, {"model_name", kModel, "FOLDER"},
    {"local_rank", kRank}, {"rank", kRank}, {"world_size", kRank}, {"node_rank", kRank},
    {"do_train", " Leave it out: this command trains."},
    {"gradient_checkpointing", " Write --set capstan.recompute={}."},
};
// clang-format on

/// Values to show where the given one does not fit the key here, as that of another program's names and switches.
constexpr std::pair<std::string_view, std::string_view> kExamples[] = {
    {"optimizer.params.lr", "3e-4"},      {"optimizer.params.betas", "[0.9,0.999]"},    {"optimizer.type", "AdamW"},
    {"scheduler.type", "WarmupCosineLR"}, {"scheduler.params.warmup_num_steps", "100"},
};

std::string filled(std::string text, std::string_view value) {
  const auto at = text.find("%s");
  return at == std::string::npos ? text : text.replace(at, 2, value);
}

bool is_number(const std::string& text) {
  try {
    const Json value = Json::parse(text);
    return value.is_number();
  } catch (const ConfigError&) {
    return false;
  }
}

bool is_off(const std::string& given) {
  for (const char* word : {"false", "False", "0", "no", "fp32", "float32"}) {
    if (given == word) return true;
  }
  return false;
}

std::string value_for(std::string_view path, const std::string& given) {
  if (path.ends_with(".enabled")) return is_off(given) ? "false" : "true";
  const auto example =
      std::find_if(std::begin(kExamples), std::end(kExamples), [&](const auto& one) { return one.first == path; });
  const bool fits = is_number(given) && path != "optimizer.params.betas";
  if (fits) return given;
  if (example != std::end(kExamples)) return std::string(example->second);
  return "VALUE";
}

/// The key of the configuration that an option means, or "".
std::string key_of(const std::string& name, const std::string& value) {
  const std::string_view here = foreign_key_here(name);
  if (here == "bf16.enabled" && (value == "fp16" || value == "float16" || value == "half")) return "fp16.enabled";
  if (!here.empty()) return std::string(here);
  const SchemaNode* node = find_key(name);
  if (!node) return "";
  if (!node->is_section()) return name;
  return node->member("enabled") ? name + ".enabled" : "";
}

std::string programs_with(std::string_view name) {
  std::string text;
  for (const ForeignProgram& program : foreign_programs()) {
    if (program.has(name)) text += (text.empty() ? "" : " and ") + std::string(program.name);
  }
  return text;
}

}  // namespace

std::string foreign_option_advice(const std::string& word, const std::string& next, const OptionOfKey& option_of,
                                  const std::string& counts) {
  const auto equals = word.find('=');
  std::string name = word.substr(0, equals);
  name.erase(0, name.find_first_not_of('-'));
  std::replace(name.begin(), name.end(), '-', '_');
  const std::string value = equals != std::string::npos ? word.substr(equals + 1) : next.starts_with('-') ? "" : next;
  for (const Direct& direct : kDirect) {
    if (direct.name != name) continue;
    const std::string shown = value.empty() ? std::string(direct.value) : value;
    return direct.advice == std::string_view(kProcesses) && !counts.empty() ? " Write " + counts + " " + shown + "."
                                                                            : filled(direct.advice, shown);
  }
  const std::string path = key_of(name, value);
  if (!path.empty()) {
    const std::string option = option_of(path);
    if (option.empty()) return " Write --set " + path + "=" + value_for(path, value) + ".";
    if (name.ends_with("epochs")) return " Training is counted in steps here: write " + option + " N.";
    return " Write " + option + (value.empty() ? "" : " " + value) + ".";
  }
  const std::string programs = programs_with(name);
  if (programs == "a launcher") return kLaunch;
  return programs.empty() ? "" : " It is an option of " + programs + ", and nothing here does the same.";
}

}  // namespace capstan::cli
