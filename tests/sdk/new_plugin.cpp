#include <iostream>

#include "core/registry/plugin_template.hpp"

/// new_plugin NAME KIND FOLDER [VARIANT]: what `capstan plugins new` does.
int main(int argc, char** argv) {
  if (argc < 4) return 2;
  try {
    capstan::create_plugin_project({argv[1], argv[2], argv[3], argc > 4 ? argv[4] : ""});
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
