#include <map>
#include <optional>

#include "cli/checkpoint_name.hpp"
#include "cli/commands.hpp"
#include "cli/program.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/export.hpp"
#include "core/errors.hpp"

namespace capstan::cli {

int export_weights(const ExportArguments& arguments) {
  static const std::map<std::string, ExportFormat> kFormats = {{"pt", ExportFormat::kPt},
                                                               {"safetensors", ExportFormat::kSafetensors}};
  static const std::map<std::string, at::ScalarType> kTypes = {
      {"float32", at::kFloat}, {"bfloat16", at::kBFloat16}, {"float16", at::kHalf}};
  std::optional<at::ScalarType> dtype;
  if (!arguments.dtype.empty()) dtype = kTypes.at(arguments.dtype);
  const CheckpointName name = CheckpointName::parse(arguments.checkpoint);
  const std::string tag = name.tag.empty() ? latest_tag(name.dir) : name.tag;
  export_checkpoint(name.dir, tag, kFormats.at(arguments.format), arguments.out, dtype);
  print("wrote " + arguments.out + " from " + name.dir + ", " + tag + "\n");
  return 0;
}

}  // namespace capstan::cli
