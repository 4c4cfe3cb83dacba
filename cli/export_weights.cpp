#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/export_compressed.hpp"
#include "cli/program.hpp"
#include "cli/saved_setup.hpp"
#include "cli/usage_error.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/checkpoint_name.hpp"
#include "core/checkpoint/export.hpp"
#include "core/compression/removal_record.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/output_path.hpp"

namespace capstan::cli {
namespace {

constexpr const char* kQ80 = "q8_0";

/// How the model of a configuration calls its weights in transformers.
HfFormat format_of(const Json& saved, const std::string& checkpoint, const std::vector<std::string>& plugin_paths) {
  Json state = Json::object();
  state["config"] = saved;
  const SavedRunFacts run{state, checkpoint, plugin_paths};
  const SavedModel model = saved_model(run);
  HfFormat format = hf_format(model.facts, model.name);
  // The whole of the config.json that the model came with, in its own dialect.
  if (const Json* config = saved_model_config(run)) format.config = *config;
  return format;
}

/// Whether a file that exists will be replaced.
bool holds_weights(const ExportArguments& arguments) {
  std::error_code error;
  const std::filesystem::path out(arguments.out);
  return std::filesystem::is_regular_file(arguments.format == "hf" ? out / "model.safetensors" : out, error);
}

/// Refuses codes for a pt file, a folder for a file and a file for a folder, before anything is read.
void check_out(const ExportArguments& arguments) {
  if (arguments.compressed && arguments.format == "pt") {
    throw UsageError("export: --compressed goes to safetensors, hf or gguf; a pt file has no codes.");
  }
  if (arguments.dtype == kQ80 && (arguments.format != "gguf" || arguments.compressed)) {
    throw UsageError("export: --dtype q8_0 goes with --to gguf, and not with --compressed, which writes codes.");
  }
  std::error_code error;
  const std::filesystem::path out(arguments.out);
  const bool folder = std::filesystem::is_directory(out, error);
  if (arguments.format == "hf" && !folder && std::filesystem::exists(out, error)) {
    throw UsageError("--out: '" + arguments.out + "' is a file, and --to hf writes a folder. Name a folder.");
  }
  if (arguments.format != "hf" && folder) {
    throw UsageError("--out: '" + arguments.out + "' is a folder, and --to " + arguments.format +
                     " writes a file. Name a file, for instance " + (out / ("model." + arguments.format)).string() +
                     ".");
  }
}

}  // namespace

int export_weights(const ExportArguments& arguments) {
  static const std::map<std::string, ExportFormat> kFormats = {{"pt", ExportFormat::kPt},
                                                               {"safetensors", ExportFormat::kSafetensors}};
  static const std::map<std::string, at::ScalarType> kTypes = {
      {"float32", at::kFloat}, {"bfloat16", at::kBFloat16}, {"float16", at::kHalf}};
  std::optional<at::ScalarType> dtype;
  if (!arguments.dtype.empty() && arguments.dtype != kQ80) dtype = kTypes.at(arguments.dtype);
  check_out(arguments);
  const bool replaces = holds_weights(arguments);
  const CheckpointName name = CheckpointName::parse(arguments.checkpoint);
  const std::string tag = tag_of(name);
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
  const std::string done =
      "wrote " + arguments.out + " from " + name.dir + ", " + tag + (replaces ? ", in place of what was there" : "");
  // Standard output may be what was written.
  arguments.format != "hf" && output_path(arguments.out).is_stream ? log::info(done) : print(done + "\n");
  return 0;
}

}  // namespace capstan::cli
