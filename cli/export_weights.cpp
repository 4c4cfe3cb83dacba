#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/checkpoint_name.hpp"
#include "cli/commands.hpp"
#include "cli/export_compressed.hpp"
#include "cli/program.hpp"
#include "cli/saved_setup.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/export.hpp"
#include "core/compression/removal_record.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/output_path.hpp"

namespace capstan::cli {
namespace {

/// How the model of a configuration calls its weights in transformers.
HfFormat format_of(const Json& saved, const std::string& checkpoint, const std::vector<std::string>& plugin_paths) {
  Json state = Json::object();
  state["config"] = saved;
  const SavedModel model = saved_model({state, checkpoint, plugin_paths});
  return hf_format(model.facts, model.name);
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
  if (arguments.compressed && arguments.format == "pt") {
    throw ConfigError("export: --compressed goes to safetensors, hf or gguf; a pt file has no codes.");
  }
  if (arguments.compressed || arguments.format == "gguf") {
    export_compressed(arguments, name.dir, tag, dtype);
  } else if (arguments.format == "hf") {
    const std::string checkpoint = name.dir + ", " + tag;
    export_hf(
        name.dir, tag, [&](const Json& config) { return format_of(config, checkpoint, arguments.plugin_paths); },
        arguments.out, dtype);
    forget_removals(arguments.out);
  } else {
    export_checkpoint(name.dir, tag, kFormats.at(arguments.format), arguments.out, dtype);
    forget_removals(arguments.out);
  }
  const std::string done = "wrote " + arguments.out + " from " + name.dir + ", " + tag;
  // Standard output may be what was written.
  arguments.format != "hf" && output_path(arguments.out).is_stream ? log::info(done) : print(done + "\n");
  return 0;
}

}  // namespace capstan::cli
