#include <map>
#include <optional>

#include "cli/checkpoint_name.hpp"
#include "cli/commands.hpp"
#include "cli/program.hpp"
#include "cli/run_setup.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/export.hpp"
#include "core/errors.hpp"

namespace capstan::cli {
namespace {

/// Builds the model that a configuration names, to ask it.
HfFormat format_of(const Json& saved, const std::string& checkpoint) {
  const Json* section = saved.find("capstan");
  const Json* model = section ? section->find("model") : nullptr;
  if (!model || !model->is_object()) {
    throw RuntimeFault("checkpoint '" + checkpoint +
                       "': a program's own model was trained, which only that program can build. Export it to "
                       "safetensors or pt.");
  }
  Json document = Json::object();
  document["train_batch_size"] = 1;
  document["capstan"]["model"] = *model;
  if (const Json* plugins = section->find("plugins")) document["capstan"]["plugins"] = *plugins;
  LoadedConfig loaded;
  loaded.communicator = Communicator::alone();
  ConfigContext context;
  context.takes_steps = false;
  loaded.config = load_config({document.dump(), "the configuration in " + checkpoint, false}, context, loaded.plugins);
  const Model built = build_model(loaded);
  return hf_format(built.describe(), built.description());
}

}  // namespace

int export_weights(const ExportArguments& arguments) {
  static const std::map<std::string, ExportFormat> kFormats = {{"pt", ExportFormat::kPt},
                                                               {"safetensors", ExportFormat::kSafetensors}};
  static const std::map<std::string, at::ScalarType> kTypes = {
      {"float32", at::kFloat}, {"bfloat16", at::kBFloat16}, {"float16", at::kHalf}};
  std::optional<at::ScalarType> dtype;
  if (!arguments.dtype.empty()) dtype = kTypes.at(arguments.dtype);
  const CheckpointName name = CheckpointName::parse(arguments.checkpoint);
  const std::string tag = name.tag.empty() ? latest_tag(name.dir) : name.tag;
  if (arguments.format == "hf") {
    const std::string checkpoint = name.dir + ", " + tag;
    export_hf(
        name.dir, tag, [&](const Json& config) { return format_of(config, checkpoint); }, arguments.out, dtype);
  } else {
    export_checkpoint(name.dir, tag, kFormats.at(arguments.format), arguments.out, dtype);
  }
  print("wrote " + arguments.out + " from " + name.dir + ", " + tag + "\n");
  return 0;
}

}  // namespace capstan::cli
