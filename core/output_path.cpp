#include "core/output_path.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <system_error>

#include "core/errors.hpp"

namespace capstan {

namespace fs = std::filesystem;

sdk::OutputPath output_path(const fs::path& path) {
  try {
    return sdk::output_path(path);
  } catch (const sdk::Error& error) {
    throw RuntimeFault(error.what());
  }
}

void replace_file(const fs::path& path, const std::function<void(const fs::path&)>& write) {
  const sdk::OutputPath to = output_path(path);
  if (to.is_stream) return write(to.path);
  const fs::path aside = to.path.string() + ".part-" + std::to_string(::getpid());
  std::error_code error;
  try {
    write(aside);
    fs::rename(aside, to.path, error);
    if (error) throw RuntimeFault(path.string() + ": cannot be written: " + error.message() + ".");
  } catch (...) {
    fs::remove(aside, error);
    throw;
  }
}

void replace_file(const fs::path& path, std::string_view text) {
  replace_file(path, [&](const fs::path& to) {
    errno = 0;
    std::ofstream out(to, std::ios::binary | std::ios::trunc);
    out << text;
    out.close();
    if (!out) throw RuntimeFault(path.string() + ": cannot be written: " + std::strerror(errno) + ".");
  });
}

}  // namespace capstan
