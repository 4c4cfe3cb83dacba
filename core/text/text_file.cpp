#include "core/text/text_file.hpp"

#include <fstream>
#include <iterator>

#include "core/errors.hpp"

namespace capstan {

std::string read_text_file(const std::filesystem::path& file) {
  std::error_code error;
  // The iterators of a stream would throw an exception without the file's name.
  if (std::filesystem::is_directory(file, error)) {
    throw RuntimeFault(file.string() + ": is a folder, and a file is needed.");
  }
  std::ifstream in(file, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), {});
  if (!in) throw RuntimeFault(file.string() + ": cannot be read.");
  return text;
}

Json parse_json_text(const std::string& text, const std::string& where) {
  try {
    return Json::parse(text);
  } catch (const ConfigError& error) {
    throw RuntimeFault(where + ": " + error.what());
  }
}

}  // namespace capstan
