#include "cli/commands.hpp"
#include "cli/plugins/plugin_text.hpp"
#include "cli/program.hpp"
#include "core/config/tools/explain.hpp"
#include "core/config/tools/json_schema.hpp"

namespace capstan::cli {

int schema(const SchemaArguments& arguments) {
  print(arguments.reference ? reference_page() : json_schema(scan_plugins(arguments.plugin_paths)).dump(2) + "\n");
  return 0;
}

}  // namespace capstan::cli
