#include "cli/data/datasets_folder.hpp"

#include "core/errors.hpp"
#include "core/text/json.hpp"
#include "core/text/text_file.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;

/// The one split of a dataset_dict.json. Throws RuntimeFault where there are others.
std::string only_split(const fs::path& folder, const fs::path& record) {
  const Json dict = parse_json_text(read_text_file(record), record.string());
  const Json* splits = dict.is_object() ? dict.find("splits") : nullptr;
  std::string names, first;
  if (splits != nullptr && splits->is_array()) {
    for (const Json& split : splits->as_array()) {
      if (!split.is_string()) continue;
      names += (names.empty() ? "" : ", ") + split.as_string();
      if (first.empty()) first = split.as_string();
    }
  }
  if (first.empty()) throw RuntimeFault(record.string() + ": names no splits of a data set.");
  if (names == first) return first;
  throw RuntimeFault("folder '" + folder.string() + "' holds the splits " + names +
                     ". Name one: " + (folder / first).string() + ".");
}

}  // namespace

std::optional<std::vector<std::string>> files_of_datasets_folder(const fs::path& folder) {
  if (const fs::path dict = folder / "dataset_dict.json"; fs::is_regular_file(dict)) {
    const fs::path split = folder / only_split(folder, dict);
    if (auto files = files_of_datasets_folder(split)) return files;
    throw RuntimeFault(dict.string() + ": names a split, and '" + split.string() + "' has no state.json.");
  }
  const fs::path state = folder / "state.json";
  if (!fs::is_regular_file(state)) return std::nullopt;
  const Json record = parse_json_text(read_text_file(state), state.string());
  const Json* parts = record.is_object() ? record.find("_data_files") : nullptr;
  if (parts == nullptr || !parts->is_array()) return std::nullopt;
  // Releases of datasets before 1.7 saved an order of the rows beside them.
  if (const Json* order = record.find("_indices_data_files");
      order != nullptr && order->is_array() && order->size() > 0) {
    throw RuntimeFault(state.string() +
                       ": has an order of its rows in a file of its own. Load the data set with the datasets library, "
                       "and save its flatten_indices().");
  }
  std::vector<std::string> files;
  for (const Json& part : parts->as_array()) {
    const Json* name = part.is_object() ? part.find("filename") : nullptr;
    if (name == nullptr || !name->is_string()) throw RuntimeFault(state.string() + ": has a data file without a name.");
    const fs::path file = folder / name->as_string();
    if (fs::path(name->as_string()).has_parent_path()) {
      throw RuntimeFault(state.string() + ": has the data file '" + name->as_string() +
                         "', which is not in its folder.");
    }
    if (!fs::is_regular_file(file)) {
      throw RuntimeFault(file.string() + ": is missing, and " + state.string() + " names it.");
    }
    files.push_back(file.string());
  }
  if (files.empty()) throw RuntimeFault(state.string() + ": names no data files.");
  return files;
}

}  // namespace capstan::cli
