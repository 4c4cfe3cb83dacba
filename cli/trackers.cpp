#include "cli/trackers.hpp"

#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <memory>

namespace capstan::cli {
namespace {

// "python -c" puts the working directory first, where a file such as json.py would be taken for Python's own module.
// importlib.metadata would take three times as long to load as the names of folders take to read.
constexpr const char* kScript = R"(
import os, sys
def plain(name): return name.lower().replace("_", "-").replace(".", "-")
found = {}
for folder in sys.path:
    try: names = os.listdir(folder) if folder else []
    except OSError: continue
    for name in names:
        if name.endswith((".dist-info", ".egg-info")) and "-" in name:
            package, version = name.rsplit(".", 1)[0].split("-")[:2]
            found.setdefault(plain(package), version)
print(sys.executable)
for package in sys.argv[1:]: print(found.get(plain(package), ""))
)";

std::string in_quotes(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

/// The first three numbers of a version.
std::array<int, 3> numbers_of(const std::string& version) {
  std::array<int, 3> numbers{};
  const char* at = version.data();
  const char* end = at + version.size();
  for (int& number : numbers) {
    const auto [stop, error] = std::from_chars(at, end, number);
    if (error != std::errc() || stop == end) break;
    at = stop + 1;
  }
  return numbers;
}

}  // namespace

PythonPackage python_package(const std::string& manifest) {
  const auto bound = manifest.find(">=");
  return {manifest.substr(0, bound), bound == std::string::npos ? "" : manifest.substr(bound + 2)};
}

PythonPackages ask_python(const std::vector<std::string>& packages) {
  const char* chosen = std::getenv("CAPSTAN_PYTHON");
  PythonPackages found{chosen && *chosen != '\0' ? chosen : "python3", {}};
  std::string command = "PYTHONSAFEPATH=1 " + in_quotes(found.python) + " -c " + in_quotes(kScript);
  for (const std::string& package : packages) command += " " + in_quotes(package);
  found.versions.resize(packages.size());
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen((command + " 2>/dev/null").c_str(), "re"), pclose);
  if (!pipe) return found;
  std::array<char, 4096> buffer{};
  const auto line = [&]() -> std::optional<std::string> {
    if (std::fgets(buffer.data(), buffer.size(), pipe.get()) == nullptr) return std::nullopt;
    const std::string text = buffer.data();
    return text.substr(0, text.find('\n'));
  };
  if (const auto file = line(); file && !file->empty()) found.python = *file;
  for (auto& version : found.versions) {
    if (const auto text = line(); text && !text->empty()) version = text;
  }
  return found;
}

std::string package_fault(const PythonPackage& package, const std::string& python,
                          const std::optional<std::string>& version) {
  const std::string text = "the Python package '" + package.name + "' is ";
  if (!version) return text + "not installed for " + python;
  if (numbers_of(*version) >= numbers_of(package.oldest)) return "";
  return text + *version + " for " + python + ", and " + package.oldest + " is the oldest that works";
}

std::string install_command(const PythonPackage& package, const std::string& python) {
  const std::string wanted = package.oldest.empty() ? package.name : package.name + ">=" + package.oldest;
  return python + " -m pip install '" + wanted + "'";
}

std::vector<Problem> missing_trackers(const Config& config, const PluginIndex& plugins) {
  std::vector<PythonPackage> wanted;
  std::vector<std::string> names, places;
  for (const ComponentChoice& choice : config.monitors) {
    const ComponentRef found = plugins.find(choice.kind, choice.type);
    if (!found || found.component->python_package.empty()) continue;
    wanted.push_back(python_package(found.component->python_package));
    names.push_back(wanted.back().name);
    places.push_back(choice.where);
  }
  std::vector<Problem> problems;
  if (wanted.empty()) return problems;
  const PythonPackages there = ask_python(names);
  const bool stops = config.run.on_monitor_failure == "stop";
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::string fault = package_fault(wanted[i], there.python, there.versions[i]);
    if (fault.empty()) continue;
    problems.push_back({Problem::Severity::kNotice, places[i],
                        fault + ", so that training here " +
                            (stops ? "would end before its first step" : "would go on without this monitor") +
                            ". To install it: " + install_command(wanted[i], there.python)});
  }
  return problems;
}

}  // namespace capstan::cli
