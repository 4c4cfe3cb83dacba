#include "core/config/tools/upgrade.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "cli/commands.hpp"
#include "cli/program.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"

namespace capstan::cli {
namespace {

/// Writes beside the file and renames, so that the old text survives a full disk.
void replace_file(const std::string& path, const std::string& text) {
  const std::string aside = path + ".upgraded";
  std::ofstream out(aside, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(aside, path, error);
  if (!out || error) {
    const std::string reason = error ? error.message() : std::strerror(errno);
    std::filesystem::remove(aside, error);
    throw RuntimeFault(path + ": cannot be written: " + reason + ".");
  }
}

}  // namespace

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
