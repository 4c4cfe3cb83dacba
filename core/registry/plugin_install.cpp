#include "core/registry/plugin_install.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <functional>

#include "core/errors.hpp"
#include "core/registry/file_hash.hpp"
#include "core/registry/file_trust.hpp"
#include "core/registry/plugin_pin.hpp"
#include "core/text/nearest.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr fs::perms kFilePermissions =
    fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read | fs::perms::others_read;
constexpr fs::perms kFolderPermissions =
    kFilePermissions | fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec;

/// The disk's word as ours.
void on_disk(const std::function<void()>& action) {
  try {
    action();
  } catch (const fs::filesystem_error& error) {
    // Of a copy or a renaming, the second path is the one that is written.
    const fs::path& path = error.path2().empty() ? error.path1() : error.path2();
    throw RuntimeFault(path.string() + ": " + error.code().message() + ".");
  }
}

/// What is in a file, or which names are in a folder, is on the disk afterwards. A file system that cannot tell is
/// believed.
void sync(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool failed = descriptor < 0 || (::fsync(descriptor) != 0 && errno != EINVAL && errno != ENOTSUP);
  const int reason = errno;
  if (descriptor >= 0) ::close(descriptor);
  if (failed) throw RuntimeFault(path.string() + ": " + std::generic_category().message(reason) + ".");
}

/// A new file that takes its place in one step, and is gone if it does not come to that.
class Aside {
 public:
  explicit Aside(fs::path to) : to_(std::move(to)) {
    path_ = to_.parent_path() / ("." + to_.filename().string() + ".part-" + std::to_string(::getpid()));
  }
  ~Aside() {
    std::error_code gone;
    fs::remove(path_, gone);
  }
  Aside(const Aside&) = delete;

  const fs::path& path() const { return path_; }
  void write(const std::string& text) const {
    std::ofstream out(path_, std::ios::binary);
    out << text;
    out.close();
    if (!out) throw RuntimeFault(path_.string() + ": cannot be written.");
  }
  void take_place() const {
    fs::permissions(path_, kFilePermissions);
    sync(path_);
    fs::rename(path_, to_);
    sync(to_.parent_path());
  }

 private:
  fs::path to_, path_;
};

std::vector<fs::path> files_of(const fs::path& source) {
  std::error_code error;
  if (!fs::is_directory(source, error)) return {source};
  const PluginIndex index = PluginIndex::scan_only(source);
  if (!index.rejected().empty()) throw PluginError(index.rejected().front().reason);
  std::vector<fs::path> files;
  for (const IndexedPlugin& plugin : index.plugins()) files.push_back(plugin.file);
  if (files.empty()) {
    throw PluginError(source.string() +
                      ": holds no plugin: there is no file libcapstan_*.so in it, nor one folder below.");
  }
  return files;
}

std::string described(const IndexedPlugin& plugin) {
  return plugin.file.string() + " (" + plugin.manifest.name + " " + plugin.manifest.version + ")";
}

/// Refuses what is not a file where a plugin would go.
void check_kind(const fs::path& to) {
  std::error_code error;
  const fs::file_type type = fs::symlink_status(to, error).type();
  if (type == fs::file_type::not_found || type == fs::file_type::regular || type == fs::file_type::symlink) return;
  throw RuntimeFault(to.string() + ": is not a file, so no plugin takes its place. Move it away.");
}

/// Refuses what stands where a plugin would go.
void check_place(const fs::path& to) {
  std::error_code error;
  if (!fs::exists(to, error)) return;
  std::string name = to.string();
  try {
    name = described(read_plugin(to));
  } catch (const PluginError&) {  // what cannot be read has its path alone
  }
  throw RuntimeFault(name + ": exists already. --force replaces it.");
}

/// Refuses a type of the plugin that one of the others provides as well; `remedy` says what to do about that one.
void check_types(const IndexedPlugin& plugin, const std::vector<IndexedPlugin>& others,
                 const std::function<std::string(const IndexedPlugin&)>& remedy) {
  for (const IndexedPlugin& other : others) {
    if (other.file.filename() == plugin.file.filename()) continue;
    const PluginIndex index = PluginIndex::of({other});
    for (const ComponentManifest& component : plugin.manifest.components) {
      if (!index.find(component.kind, component.type, component.device)) continue;
      throw RuntimeFault(plugin.file.string() + ": its " + component.kind + " '" + component.type +
                         "' is provided by " + described(other) + remedy(other) +
                         " with --force: the first by file name counts.");
    }
  }
}

std::string remove_it(const IndexedPlugin& other) {
  return " already. Remove that first: capstan plugins remove " + other.manifest.name + ". Or keep both";
}

std::string choose_one(const IndexedPlugin&) { return " as well. Install one of them alone, or both"; }

InstalledPlugin install(const IndexedPlugin& plugin, const fs::path& to) {
  const Aside copy(to), pin(pin_of(to));
  InstalledPlugin installed;
  on_disk([&] {
    fs::copy_file(plugin.file, copy.path(), fs::copy_options::overwrite_existing);
    installed.sha256 = sha256_of_file(copy.path());
    pin.write(pin_text(to, installed.sha256));
    // The pin first: a file without its pin would be loaded, one with another's is refused.
    pin.take_place();
    copy.take_place();
  });
  installed.plugin = read_plugin(to);
  return installed;
}

void make_folder(const fs::path& folder) {
  on_disk([&] {
    std::vector<fs::path> missing;
    for (fs::path at = fs::absolute(folder); !fs::exists(at); at = at.parent_path()) missing.push_back(at);
    for (auto it = missing.rbegin(); it != missing.rend(); ++it) {
      // Whatever the umask is: nothing is loaded from a folder that everybody may write to.
      if (fs::create_directory(*it)) fs::permissions(*it, kFolderPermissions);
    }
  });
  if (const Trust trust = check_trust(folder, "folder"); !trust.refusal.empty()) throw PluginError(trust.refusal);
}

}  // namespace

std::vector<InstalledPlugin> install_plugins(const fs::path& source, const fs::path& folder, bool replace) {
  std::vector<IndexedPlugin> plugins;
  for (const fs::path& file : files_of(source)) {
    plugins.push_back(read_plugin(file));
    require_plugin_name(plugins.back());
  }
  make_folder(folder);
  const PluginIndex there = PluginIndex::scan_only(folder);
  for (const IndexedPlugin& plugin : plugins) {
    check_kind(folder / plugin.file.filename());
    if (replace) continue;
    check_place(folder / plugin.file.filename());
    check_types(plugin, there.plugins(), remove_it);
    check_types(plugin, plugins, choose_one);
  }
  std::vector<InstalledPlugin> installed;
  for (const IndexedPlugin& plugin : plugins) installed.push_back(install(plugin, folder / plugin.file.filename()));
  return installed;
}

std::vector<fs::path> remove_plugins(const std::string& name, const fs::path& folder) {
  const PluginIndex there = PluginIndex::scan_only(folder);
  std::vector<fs::path> files;
  std::vector<std::string> known;
  for (const IndexedPlugin& plugin : there.plugins()) {
    known.push_back(plugin.manifest.name);
    if (plugin.manifest.name == name || plugin.file.filename() == name) files.push_back(plugin.file);
  }
  for (const RejectedPlugin& plugin : there.rejected()) {
    if (plugin.file.filename() == name) files.push_back(plugin.file);
  }
  if (files.empty()) {
    std::string all;
    for (const std::string& one : known) all += (all.empty() ? "" : ", ") + one;
    throw PluginError("plugins remove: there is no plugin '" + name + "' in " + folder.string() + "." +
                      suggestion(name, known) + " There " + (known.empty() ? "are none." : "is: " + all + "."));
  }
  on_disk([&] {
    for (const fs::path& file : files) {
      fs::remove(file);
      fs::remove(pin_of(file));
    }
  });
  return files;
}

}  // namespace capstan
