#include "data_files.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "capstan/sdk/component.hpp"
#include "capstan/sdk/token_pieces.hpp"

namespace capstan::data {
namespace {

namespace fs = std::filesystem;
using RealFile = std::pair<dev_t, ino_t>;

struct Candidate {
  DataFile file;
  RealFile real;
  bool link;   // reached through a symbolic link, its own or a folder's
  int source;  // which of the user's paths led to it
};

struct stat facts_of(const fs::path& path) {
  struct stat facts {};
  if (stat(path.c_str(), &facts) != 0) {
    throw sdk::Error("'" + path.string() + "': " + std::generic_category().message(errno) + ".");
  }
  return facts;
}

/// Whether 'capstan data tokenize' writes a file of this name beside tokens.
bool is_record(const fs::path& path) {
  const fs::path of = path.parent_path() / path.stem();
  std::error_code error;
  return path.extension() == ".json" && (of.extension() == ".bin" || of.extension() == ".idx") && fs::exists(of, error);
}

/// Walks one folder given by the user.
class Search {
 public:
  Search(fs::path top, bool only_bin) : top_(std::move(top)), only_bin_(only_bin) { walk(top_, false); }

  std::vector<Candidate> found() {
    std::sort(found_.begin(), found_.end(), [](const auto& a, const auto& b) { return a.file.name < b.file.name; });
    return std::move(found_);
  }

 private:
  void walk(const fs::path& folder, bool link) {
    const auto facts = facts_of(folder);
    if (!visited_.insert({facts.st_dev, facts.st_ino}).second) return;  // links may form a circle
    std::error_code error;
    fs::directory_iterator entries(folder, error);
    for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
      if (entries->path().filename().string().starts_with('.')) continue;
      take(*entries, link);
    }
    if (error) throw sdk::Error("folder '" + folder.string() + "': " + error.message() + ".");
  }

  void take(const fs::directory_entry& entry, bool link) {
    link = link || entry.is_symlink();
    const auto facts = facts_of(entry.path());
    if (S_ISDIR(facts.st_mode)) {
      if (!sdk::is_piece_folder(entry.path())) walk(entry.path(), link);
      return;
    }
    if (!S_ISREG(facts.st_mode) || facts.st_size == 0) return;
    if (only_bin_ && entry.path().extension() != ".bin") return;
    if (is_record(entry.path())) return;
    found_.push_back({{entry.path(), entry.path().lexically_relative(top_).generic_string()},
                      {facts.st_dev, facts.st_ino},
                      link,
                      0});
  }

  fs::path top_;
  bool only_bin_;
  std::set<RealFile> visited_;
  std::vector<Candidate> found_;
};

std::vector<Candidate> candidates_of(const fs::path& path, bool only_bin) {
  const auto facts = facts_of(path);
  if (S_ISDIR(facts.st_mode)) {
    auto found = Search(path, only_bin).found();
    if (found.empty()) {
      throw sdk::Error("folder '" + path.string() + "' holds no " + (only_bin ? ".bin file" : "file") +
                       " with anything in it.");
    }
    return found;
  }
  if (!S_ISREG(facts.st_mode)) {
    throw sdk::Error("'" + path.string() + "' is neither a regular file nor a folder.");
  }
  if (facts.st_size == 0) {
    throw sdk::Error("'" + path.string() + "' is empty.");
  }
  return {{{path, path.filename().string()}, {facts.st_dev, facts.st_ino}, fs::is_symlink(path), 0}};
}

std::vector<DataFile> each_real_file_once(std::vector<Candidate> candidates,
                                          const std::function<void(const std::string&)>& said) {
  std::map<RealFile, const Candidate*> chosen;
  for (const auto& candidate : candidates) {
    auto [place, fresh] = chosen.try_emplace(candidate.real, &candidate);
    if (!fresh && place->second->link && !candidate.link) place->second = &candidate;
  }
  std::vector<DataFile> files;
  std::string example;
  std::size_t repeats = 0;
  for (auto& candidate : candidates) {
    const Candidate* kept = chosen.at(candidate.real);
    if (kept == &candidate) {
      files.push_back(candidate.file);
    } else if (kept->source != candidate.source) {
      // Links inside one folder are how it is laid out; two paths to one file may be a slip.
      if (repeats++ == 0) example = "'" + candidate.file.path.string() + "' is '" + kept->file.path.string() + "'";
    }
  }
  if (repeats > 0 && said) {
    said(std::to_string(repeats) + (repeats == 1 ? " path leads" : " paths lead") +
         " to files that stand in the data already (" + example + "); each file is read once.");
  }
  return files;
}

}  // namespace

std::vector<DataFile> find_data_files(const std::vector<std::string>& paths, bool only_bin,
                                      const std::function<void(const std::string&)>& said) {
  if (paths.empty()) {
    throw sdk::Error("no file or folder was given.");
  }
  std::vector<Candidate> all;
  int source = 0;
  for (const auto& path : paths) {
    auto found = candidates_of(path, only_bin);
    for (Candidate& candidate : found) candidate.source = source;
    ++source;
    std::move(found.begin(), found.end(), std::back_inserter(all));
  }
  return each_real_file_once(std::move(all), said);
}

}  // namespace capstan::data
