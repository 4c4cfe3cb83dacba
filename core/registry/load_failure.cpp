#include "core/registry/load_failure.hpp"

#include <cxxabi.h>

#include <cstdlib>
#include <map>
#include <memory>

namespace capstan {
namespace {

std::string demangled(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> readable(abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status),
                                                        std::free);
  return status == 0 ? readable.get() : symbol;
}

/// How to get a library, by the start of its soname.
std::string remedy(std::string_view library) {
  static const std::map<std::string, std::string, std::less<>> kDebianPackages = {
      {"libaio.so.1", "libaio1"},          {"libhwy.so.1", "libhwy1"},       {"libibverbs.so.1", "libibverbs1"},
      {"libmpi.so.40", "libopenmpi3"},     {"libnettle.so.8", "libnettle8"}, {"libnuma.so.1", "libnuma1"},
      {"librdmacm.so.1", "librdmacm1"},    {"libssl.so.3", "libssl3"},       {"liburing.so.2", "liburing2"},
      {"libxxhash.so.0", "libxxhash0"},    {"libz.so.1", "zlib1g"},          {"libzstd.so.1", "libzstd1"},
      {"libcrypto.so.3", "libssl3"},       {"libtbb.so.12", "libtbb12"},     {"libgomp.so.1", "libgomp1"},
      {"libopenblas.so.0", "libopenblas0"}};
  if (const auto found = kDebianPackages.find(library); found != kDebianPackages.end()) {
    return "On Debian: apt install " + found->second + ".";
  }
  if (library.starts_with("libtorch_cuda") || library.starts_with("libc10_cuda")) {
    return "It belongs to the CUDA build of LibTorch, which this process does not run.";
  }
  if (library.starts_with("libtorch") || library.starts_with("libc10")) {
    return "It belongs to LibTorch, which this program does not use.";
  }
  if (library.starts_with("libcuda.")) return "It belongs to NVIDIA's driver.";
  if (library.starts_with("libcu") || library.starts_with("libnv") || library.starts_with("libnccl")) {
    return "It belongs to NVIDIA's CUDA libraries, which the torch wheel's nvidia-* packages bring.";
  }
  return "Install the package that brings it; on Debian, apt-file search " + std::string(library) + " names it.";
}

/// What stands between two marks; empty when they do not.
std::string_view between(std::string_view text, std::string_view open, std::string_view close) {
  const auto begin = text.find(open);
  if (begin == std::string_view::npos) return {};
  text.remove_prefix(begin + open.size());
  return text.substr(0, text.find(close));
}

}  // namespace

std::string explain_load_failure(const std::string& file, std::string_view text) {
  constexpr std::string_view kMissing = ": cannot open shared object file";
  if (const auto at = text.find(kMissing); at != std::string_view::npos) {
    const std::string library(text.substr(0, at));
    if (library != file) {
      return file + ": cannot be loaded: its dependency " + library + " was not found. " + remedy(library);
    }
  }
  if (const auto symbol = between(text, "undefined symbol: ", ","); !symbol.empty()) {
    return file + ": undefined symbol '" + demangled(std::string(symbol)) +
           "'. The plugin was linked without -Wl,-z,defs; rebuild it with capstan_add_plugin().";
  }
  if (const auto version = between(text, "version `", "'"); !version.empty()) {
    return file + ": cannot be loaded: it needs " + std::string(version) +
           ", which this machine's libraries do not have. It was built on a newer system; rebuild it here.";
  }
  return file + ": cannot be loaded: " + std::string(text) + ".";
}

}  // namespace capstan
