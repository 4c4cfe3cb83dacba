#include <cxxabi.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "core/registry/plugin_library.hpp"
#include "core/registry/registry.hpp"
#include "core/registry/torch_tier.hpp"
#include "sdk/conformance/case.hpp"
#include "sdk/conformance/elf_symbols.hpp"
#include "sdk/conformance/footprint.hpp"

namespace capstan::conformance {
namespace {

namespace fs = std::filesystem;

constexpr double kLoadBudgetSeconds = 0.05;

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

std::string demangled(const std::string& symbol) {
  const std::unique_ptr<char, void (*)(void*)> readable(abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, nullptr),
                                                        std::free);
  return readable ? readable.get() : symbol;
}

/// True for C++ symbols of at::, c10:: or torch::, whose meaning changes with every release of LibTorch.
bool is_torch_cxx(const std::string& symbol) {
  const std::string name = demangled(symbol);
  if (name == symbol) return false;  // C
  for (const std::string space : {"at::", "c10::", "torch::"}) {
    for (auto at = name.find(space); at != std::string::npos; at = name.find(space, at + 1)) {
      if (at == 0 ||
          !(std::isalnum(static_cast<unsigned char>(name[at - 1])) || name[at - 1] == '_' || name[at - 1] == ':')) {
        return true;
      }
    }
  }
  return false;
}

/// What the process writes to its standard output and error while this lives.
class Output {
 public:
  Output() : file_(::memfd_create("output", 0)) {
    std::fflush(nullptr);
    for (int fd : {1, 2}) {
      saved_[fd - 1] = ::dup(fd);
      ::dup2(file_, fd);
    }
  }
  ~Output() { restore(); }

  std::string restore() {
    if (file_ < 0) return "";
    std::fflush(nullptr);
    for (int fd : {1, 2}) {
      ::dup2(saved_[fd - 1], fd);
      ::close(saved_[fd - 1]);
    }
    std::string text(static_cast<std::size_t>(::lseek(file_, 0, SEEK_END)), '\0');
    const ssize_t n = ::pread(file_, text.data(), text.size(), 0);
    text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    ::close(file_);
    file_ = -1;
    return text;
  }

 private:
  int file_;
  int saved_[2];
};

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

void check_manifest(const Context& context) { read_plugin(context.plugin); }

void check_exports(const Context& context) {
  const auto exported = read_dynamic_tables(context.plugin).exported;
  expect(exported == std::vector<std::string>{"capstan_plugin_v1"},
         "exports " + joined(exported) + ", not capstan_plugin_v1 alone. Build it with capstan_add_plugin().");
}

void check_run_path(const Context& context) {
  const std::string run_path = read_dynamic_tables(context.plugin).run_path;
  expect(run_path.empty(), "has the RUNPATH '" + run_path +
                               "', which can pull a second LibTorch into the process. Build it with "
                               "capstan_add_plugin().");
}

void check_symbols(const Context& context) {
  if (read_plugin(context.plugin).manifest.tier == PluginManifest::Tier::kPinned) {
    throw Skip("a pinned plugin may use all of LibTorch.");
  }
  for (const std::string& symbol : read_dynamic_tables(context.plugin).undefined) {
    expect(!is_torch_cxx(symbol), "needs '" + demangled(symbol) +
                                      "', a C++ symbol of LibTorch, whose layout changes with every release. Use the "
                                      "stable headers, or TIER pinned.");
  }
}

/// The library of AddressSanitizer ends a process into which it comes late.
void check_sanitizer(const fs::path& plugin) {
  const auto undefined = read_dynamic_tables(plugin).undefined;
  const bool sanitized = std::binary_search(undefined.begin(), undefined.end(), "__asan_init");
  expect(
      !sanitized || ::dlsym(RTLD_DEFAULT, "__asan_init") != nullptr,
      "was built with -fsanitize=address, whose library must be in the process from its start. Run the kit under "
      "it:\n        LD_PRELOAD=$(gcc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 capstan plugins check " +
          plugin.string());
}

void load(const fs::path& plugin) {
  const IndexedPlugin indexed = read_plugin(plugin);
  check_sanitizer(plugin);
  const std::string mismatch = torch_mismatch(plugin.string(), indexed.manifest, running_torch());
  expect(mismatch.empty(), mismatch);
  load_plugin_library(indexed);
}

void check_load(const Context& context) { load(context.plugin); }

void check_copy(const Context& context) {
  const fs::path copy = fs::absolute("libcapstan_copy.so");
  fs::copy_file(context.plugin, copy);
  load(context.plugin);
  load(copy);
  load(context.plugin);
}

void check_quiet(const Context& context) {
  const Footprint before;
  Output output;
  load(context.plugin);
  const std::string said = output.restore();
  const Footprint after;
  expect(said.empty(), "writes to the standard output or error when it is loaded: " + said.substr(0, 100));
  const std::string more = added(before, after);
  expect(more.empty(), more + " when it is loaded.");
}

void check_speed(const Context& context) {
  const double start = cpu_seconds();
  load(context.plugin);
  const double seconds = cpu_seconds() - start;
  expect(seconds < kLoadBudgetSeconds,
         "scanning and loading took " + std::to_string(static_cast<int>(1000 * seconds)) + " ms.");
}

}  // namespace

Cases loading_cases(const fs::path&) {
  return {
      {"loading/manifest", "The manifest is in the file, complete and correct.", check_manifest},
      {"loading/exports", "Exactly one symbol is exported: capstan_plugin_v1.", check_exports},
      {"loading/run_path", "The file carries no RUNPATH.", check_run_path},
      {"loading/stable_symbols", "A plugin that is not pinned needs no C++ symbol of LibTorch.", check_symbols},
      {"loading/load", "The file loads with all its symbols resolved, and keeps what its manifest says.", check_load},
      {"loading/copy", "It loads twice, and beside a copy of itself.", check_copy},
      {"loading/quiet", "Loading it and asking for its descriptor does nothing else.", check_quiet},
      {"loading/speed", "Scanning and loading it take less than 50 ms of processor time.", check_speed},
  };
}

}  // namespace capstan::conformance
