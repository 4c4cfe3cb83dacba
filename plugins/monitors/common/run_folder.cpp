#include "run_folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <fstream>
#include <map>
#include <optional>
#include <string_view>

#include "append_file.hpp"
#include "capstan/sdk/output_folder.hpp"

namespace capstan::monitors {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMark = ".capstan_run";

/// The run that the folder belongs to; nothing where no run has marked it.
std::optional<std::string> owner(const fs::path& folder) {
  std::ifstream file(folder / kMark);
  if (!file) return std::nullopt;
  std::string run;
  std::getline(file, run);
  return run;
}

bool has_metrics(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code unknown;
    if (!entry->is_regular_file(unknown)) continue;  // a pipe holds no other run's metrics
    const std::string name = entry->path().filename().string();
    if (name.starts_with("events.out.tfevents.") || entry->path().extension() == ".csv") return true;
  }
  return false;
}

fs::path numbered(const fs::path& wanted, std::int64_t number) {
  return number == 1 ? wanted : fs::path(wanted.string() + "-" + std::to_string(number));
}

/// Folders of the names that numbered() gives, by number.
std::map<std::int64_t, fs::path> folders_there(const fs::path& wanted) {
  std::map<std::int64_t, fs::path> found;
  std::error_code error;
  if (fs::is_directory(wanted, error)) found.emplace(1, wanted);
  const std::string stem = wanted.filename().string() + "-";
  const fs::path above = wanted.has_parent_path() ? wanted.parent_path() : fs::path(".");
  for (fs::directory_iterator entry(above, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(stem)) continue;
    std::int64_t number = 0;
    const char* last = name.data() + name.size();
    const auto [stop, failure] = std::from_chars(name.data() + stem.size(), last, number);
    if (failure == std::errc() && stop == last && number > 1) found.emplace(number, numbered(wanted, number));
  }
  return found;
}

/// Marks a folder, which is there; false where another run, or another thread of this one, was faster.
bool mark(const fs::path& folder, const std::string& run) {
  const fs::path file = folder / kMark;
  // Whoever sees the file sees all of it: this name is not taken twice, and link() never replaces.
  std::string aside = file.string() + ".XXXXXX";
  const int descriptor = ::mkstemp(aside.data());
  if (descriptor < 0) fail_on(file, errno);
  ::fchmod(descriptor, 0644);
  const std::string text = run + "\n";
  const bool written = ::write(descriptor, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int reason = errno;
  ::close(descriptor);
  const bool linked = written && ::link(aside.c_str(), file.c_str()) == 0;
  const int why = written ? errno : reason;
  // Where the file system has no links, two runs that begin at the same moment may both take it.
  const bool renamed =
      written && !linked && why != EEXIST && !fs::exists(file) && ::rename(aside.c_str(), file.c_str()) == 0;
  ::unlink(aside.c_str());
  if (linked || renamed) return true;
  if (why != EEXIST) fail_on(file, why);
  return false;
}

}  // namespace

RunFolder run_folder(const fs::path& given, const sdk::Document& run_info) {
  fs::path wanted = given.lexically_normal();
  if (wanted.filename().empty()) wanted = wanted.parent_path();
  const bool resumed = run_info.has("resumed_at");
  const std::string run = run_info.has("run") ? run_info.text("run") : "";
  if (run.empty() && (!resumed || !owner(wanted))) {
    return {wanted, false, sdk::make_folder(wanted)};
  }
  const auto there = folders_there(wanted);
  for (const auto& [number, folder] : there) {
    if (!run.empty() && owner(folder) == run) return {folder, !resumed};
  }
  for (std::int64_t number = 1;; ++number) {
    const fs::path folder = numbered(wanted, number);
    const bool exists = there.contains(number);
    // Releases before this one left no mark.
    const bool is_older_start = resumed && number == 1;
    if (exists && (owner(folder) || (has_metrics(folder) && !is_older_start))) continue;
    const std::string made = sdk::make_folder(folder);
    if (run.empty() || mark(folder, run)) return {folder, false, made};
    if (owner(folder) == run) return {folder, false, made};
  }
}

void tell_folder(const sdk::Host& host, const fs::path& wanted, const RunFolder& got) {
  if (!got.made.empty()) host.info(got.made);
  std::error_code error;
  if (fs::equivalent(wanted, got.path, error)) return;
  host.info("'" + wanted.string() + "' holds the metrics of another run; this run's are in '" + got.path.string() +
            "'.");
}

}  // namespace capstan::monitors
