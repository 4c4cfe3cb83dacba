#include "core/elastic/save_fence.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <mutex>
#include <optional>
#include <system_error>
#include <tuple>
#include <vector>

#include "core/errors.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = ".run-";

std::mutex token_mutex;
SaveToken own_token;

std::string name_of(const SaveToken& token) {
  return kPrefix + token.run + "-" + std::to_string(token.term) + "-" + std::to_string(token.generation);
}

std::optional<SaveToken> token_of(const std::string& name) {
  char run[65] = "";
  long long term = 0, generation = 0;
  int end = 0;
  if (std::sscanf(name.c_str(), ".run-%64[0-9a-f]-%lld-%lld%n", run, &term, &generation, &end) != 3) return {};
  if (static_cast<std::size_t>(end) != name.size()) return {};
  return SaveToken{run, term, generation};
}

std::vector<SaveToken> fences_in(const fs::path& dir) {
  std::vector<SaveToken> fences;
  std::error_code error;
  fs::directory_iterator entries(dir, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    if (auto token = token_of(entries->path().filename().string())) fences.push_back(std::move(*token));
  }
  if (error) throw RuntimeFault("checkpoints in '" + dir.string() + "': " + error.message() + ".");
  return fences;
}

/// The file by which a run finds that another one has kept it out.
fs::path mark_of(const fs::path& dir, const std::string& run) { return dir / (kPrefix + run + ".left"); }

/// Whether that one keeps this one out.
bool keeps_out(const fs::path& dir, const SaveToken& other, const SaveToken& token) {
  return other.run == token.run ? token.precedes(other) : access(mark_of(dir, token.run).c_str(), F_OK) == 0;
}

std::string refusal(const fs::path& dir, const SaveToken& token, const SaveToken& other) {
  const std::string own = "checkpoints in '" + dir.string() + "': generation " + std::to_string(token.generation) +
                          " of this run may not save, because ";
  if (other.run == token.run) return own + "generation " + std::to_string(other.generation) + " has taken its place.";
  return own + "another run saves there since. Give each run a folder of its own.";
}

[[noreturn]] void fail(const fs::path& path, const char* what) {
  throw RuntimeFault("'" + path.string() + "' cannot be " + what + ": " + std::generic_category().message(errno) + ".");
}

void write_mark(const fs::path& file) {
  const int descriptor = open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor < 0) fail(file, "written");
  close(descriptor);
}

}  // namespace

bool SaveToken::precedes(const SaveToken& other) const {
  return std::tie(term, generation) < std::tie(other.term, other.generation);
}

void set_save_token(const SaveToken& token) {
  const std::lock_guard lock(token_mutex);
  own_token = token;
}

SaveToken save_token() {
  const std::lock_guard lock(token_mutex);
  return own_token;
}

fs::path enter_save_fence(const fs::path& dir, const SaveToken& token) {
  if (token.run.empty()) return dir;
  const fs::path own = dir / name_of(token);
  while (true) {
    // Of two that enter at once, whoever looks last sees the other.
    if (mkdir(own.c_str(), 0755) != 0 && errno != EEXIST) fail(own, "made");
    bool alone = true;
    for (const SaveToken& other : fences_in(dir)) {
      if (other == token) continue;
      alone = false;
      if (keeps_out(dir, other, token)) {
        rmdir(own.c_str());
        throw RuntimeFault(refusal(dir, token, other));
      }
      if (other.run != token.run) write_mark(mark_of(dir, other.run));
      const fs::path older = dir / name_of(other), inside = own / name_of(other);
      if (rename(older.c_str(), inside.c_str()) != 0 && errno != ENOENT) fail(older, "renamed");
      std::error_code ignored;
      fs::remove_all(inside, ignored);
    }
    if (alone) return own;
  }
}

void check_save_fence(const fs::path& dir, const SaveToken& token) {
  std::error_code error;
  if (token.run.empty() || !fs::is_directory(dir, error)) return;
  for (const SaveToken& other : fences_in(dir)) {
    if (other != token && keeps_out(dir, other, token)) throw RuntimeFault(refusal(dir, token, other));
  }
}

}  // namespace capstan
