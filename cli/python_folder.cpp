#include "cli/python_folder.hpp"

#include <cstdio>
#include <memory>

namespace capstan::cli {

std::string python_package_folder(const std::string& name) {
  const std::string command = "python3 -c \"import importlib.util as u; print(u.find_spec('" + name +
                              "').submodule_search_locations[0])\" 2>/dev/null";
  const std::unique_ptr<FILE, int (*)(FILE*)> output(popen(command.c_str(), "re"), &pclose);
  char line[4096];
  if (!output || !std::fgets(line, sizeof line, output.get())) return "";
  std::string folder = line;
  while (folder.ends_with('\n')) folder.pop_back();
  return folder;
}

}  // namespace capstan::cli
