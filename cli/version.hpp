#pragma once

#include <string>

namespace capstan::cli {

/// "Capstan 0.1.0", its plugin ABI, and LibTorch with its build id and folder, or where it was looked for in vain. The
/// build id is read from the file: nothing is loaded.
std::string version_text();

/// The LibTorch that Capstan was built with: its version, and where it lay then.
struct BuiltWith {
  const char* torch_version;
  const char* torch_lib_dir;
  const char* torch_build_id;
};
BuiltWith built_with();

}  // namespace capstan::cli
