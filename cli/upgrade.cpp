#include "core/config/tools/upgrade.hpp"

#include "cli/commands.hpp"
#include "cli/program.hpp"
#include "core/log.hpp"
#include "core/output_path.hpp"

namespace capstan::cli {

int upgrade(const UpgradeArguments& arguments) {
  const ConfigText text = read_config_text(arguments.file);
  const Upgraded out = upgrade_text(text);
  for (const std::string& change : out.changes) log::info(text.source + ": " + change);
  if (!arguments.in_place) {
    print(out.text);
  } else if (!out.changes.empty()) {
    replace_file(arguments.file, out.text);
  }
  return 0;
}

}  // namespace capstan::cli
