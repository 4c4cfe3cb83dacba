#include "cli/machine.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>

#include "cli/shared_library.hpp"
#include "core/text/table.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;

std::optional<fs::path> on_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::istringstream in(path ? path : "");
  for (std::string folder; std::getline(in, folder, ':');) {
    const fs::path file = fs::path(folder) / program;
    if (!folder.empty() && access(file.c_str(), X_OK) == 0) return file;
  }
  return std::nullopt;
}

/// The first line of what `file --version` prints that holds `word`.
std::string version_line(const fs::path& file, const std::string& word = "") {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(
      popen(("'" + file.string() + "' --version 2>/dev/null").c_str(), "r"), pclose);
  if (!pipe) return "";
  char buffer[512];
  while (std::fgets(buffer, sizeof buffer, pipe.get()) != nullptr) {
    std::string line = buffer;
    if (line.find(word) == std::string::npos) continue;
    return line.substr(0, line.find('\n'));
  }
  return "";
}

Finding build_tool(const std::string& program, const std::string& package, bool required) {
  if (const auto file = on_path(program)) {
    return {program, Finding::State::kFine, version_line(*file) + " (" + file->string() + ")", ""};
  }
  return {program, required ? Finding::State::kMissing : Finding::State::kOptional, "not found",
          "scripts/setup installs it; on Debian: apt install " + package};
}

Finding cuda_toolkit() {
  std::optional<fs::path> compiler = on_path("nvcc");
  if (!compiler && access("/usr/local/cuda/bin/nvcc", X_OK) == 0) compiler = "/usr/local/cuda/bin/nvcc";
  if (compiler) {
    return {"toolkit", Finding::State::kFine, version_line(*compiler, "release") + " (" + compiler->string() + ")", ""};
  }
  return {"toolkit", Finding::State::kOptional, "no nvcc on the PATH or in /usr/local/cuda/bin",
          "only for building CUDA plugins: https://developer.nvidia.com/cuda-downloads"};
}

std::string line_value(const fs::path& file, const std::string& name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(name)) continue;
    const auto value = line.find_first_not_of(" \t", name.size());
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

Finding gpus() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    names.push_back(line_value(entry.path() / "information", "Model:"));
  }
  // Inside some containers the device is there and /proc is not.
  for (int i = 0; names.empty() && fs::exists("/dev/nvidia" + std::to_string(i), error); ++i) {
    names.push_back("/dev/nvidia" + std::to_string(i));
  }
  if (!names.empty()) return {"GPUs", Finding::State::kFine, joined(names), ""};
  return {"GPUs", Finding::State::kOptional, "none found", "only for CUDA: a GPU with NVIDIA's driver"};
}

Finding system_library(const std::string& label, const std::string& name, const SharedLibrary& library,
                       const std::string& remedy) {
  if (const auto file = find_shared_library(name, library)) {
    return {label, Finding::State::kFine, file->string(), ""};
  }
  return {label, Finding::State::kOptional, name + " was not found", remedy};
}

/// What a library's `int function(int*)` tells: CUDA's versions are 1000 * major + 10 * minor.
std::optional<int> version_told_by(const fs::path& file, const char* function) {
  const std::unique_ptr<void, int (*)(void*)> library(::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL), ::dlclose);
  if (!library) return std::nullopt;
  const auto ask = reinterpret_cast<int (*)(int*)>(::dlsym(library.get(), function));
  int version = 0;
  return ask && ask(&version) == 0 ? std::optional(version) : std::nullopt;
}

std::string cuda_version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

/// Compares the driver with the runtime that LibTorch loads; nothing where either is missing or does not say.
std::optional<Finding> cuda_versions(const SharedLibrary& torch) {
  const auto driver_file = find_shared_library("libcuda.so.1", {});
  const auto runtime = std::find_if(torch.needed.begin(), torch.needed.end(),
                                    [](const auto& name) { return name.starts_with("libcudart."); });
  const auto runtime_file = runtime == torch.needed.end() ? std::nullopt : find_shared_library(*runtime, torch);
  if (!driver_file || !runtime_file) return std::nullopt;
  const auto driver = version_told_by(*driver_file, "cuDriverGetVersion");
  const auto needed = version_told_by(*runtime_file, "cudaRuntimeGetVersion");
  if (!driver || !needed) return std::nullopt;
  const std::string text =
      "the driver is for CUDA " + cuda_version_text(*driver) + ", LibTorch's runtime is " + cuda_version_text(*needed);
  // Within a major version an older driver serves a newer runtime.
  if (*driver / 1000 >= *needed / 1000) return Finding{"CUDA versions", Finding::State::kFine, text, ""};
  return Finding{"CUDA versions", Finding::State::kOptional, text,
                 "only for CUDA: NVIDIA's driver for CUDA " + std::to_string(*needed / 1000) + " or newer"};
}

}  // namespace

FindingGroup find_build_tools() {
  return {"Build tools",
          {build_tool("g++", "g++", true), build_tool("cmake", "cmake", true), build_tool("ninja", "ninja-build", true),
           build_tool("ccache", "ccache", false), build_tool("clang-format", "clang-format", false),
           build_tool("clang-tidy", "clang-tidy", false)}};
}

FindingGroup find_cuda(const std::string& torch_lib_dir) {
  const std::string wheel = "only for CUDA: .venv/bin/pip install torch, with its dependencies";
  FindingGroup group{"CUDA", {cuda_toolkit(), gpus()}};
  group.findings.push_back(system_library("driver", "libcuda.so.1", {}, "only for CUDA: NVIDIA's driver"));
  const auto library = read_shared_library(fs::path(torch_lib_dir) / "libtorch_cuda.so");
  if (!library) {
    group.findings.push_back({"LibTorch for CUDA", Finding::State::kOptional, "no libtorch_cuda.so in " + torch_lib_dir,
                              "only for CUDA: a torch wheel that was built for it"});
    return group;
  }
  if (auto versions = cuda_versions(*library)) group.findings.push_back(std::move(*versions));
  group.findings.push_back(system_library("NCCL", "libnccl.so.2", *library, wheel));
  std::vector<std::string> missing;
  for (const std::string& name : library->needed) {
    if (!find_shared_library(name, *library)) missing.push_back(name);
  }
  if (missing.empty()) {
    group.findings.push_back({"LibTorch for CUDA", Finding::State::kFine, "all its libraries are there", ""});
  } else {
    group.findings.push_back({"LibTorch for CUDA", Finding::State::kOptional, "lacks " + joined(missing), wheel});
  }
  return group;
}

}  // namespace capstan::cli
