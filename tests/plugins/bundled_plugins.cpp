#include "tests/plugins/bundled_plugins.hpp"

#include <fstream>
#include <string>

namespace capstan::testing {

std::vector<IndexedPlugin> bundled_plugins() {
  std::vector<IndexedPlugin> plugins;
  std::ifstream list(CAPSTAN_TEST_BUNDLED_PLUGINS);
  for (std::string file; std::getline(list, file);) plugins.push_back(read_plugin(file));
  return plugins;
}

}  // namespace capstan::testing
