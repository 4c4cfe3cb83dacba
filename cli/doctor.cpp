#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "capstan/plugin.h"
#include "cli/commands.hpp"
#include "cli/machine.hpp"
#include "cli/plugins/plugin_text.hpp"
#include "cli/program.hpp"
#include "cli/terminal.hpp"
#include "cli/trackers.hpp"
#include "cli/version.hpp"
#include "core/errors.hpp"
#include "core/registry/registry.hpp"
#include "core/text/table.hpp"
#include "core/version.hpp"

namespace capstan::cli {
namespace {

/// The file that this process has mapped for a library of that name, or empty.
std::string mapped_file(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const auto slash = line.find('/');
    if (slash != std::string::npos && line.ends_with("/" + name)) return line.substr(slash);
  }
  return "";
}

FindingGroup this_installation() {
  const BuiltWith built = built_with();
  const TorchIdentity torch = running_torch();
  FindingGroup group{"Capstan", {}};
  group.findings.push_back({"version", Finding::State::kFine,
                            std::string(version()) + ", plugin ABI " + std::to_string(CAPSTAN_ABI_MAJOR) + "." +
                                std::to_string(CAPSTAN_ABI_MINOR) + " (" + install_prefix().string() + ")",
                            ""});
  Finding libtorch{"LibTorch", Finding::State::kFine,
                   torch.version + " (build " + torch.build_id + ") in " +
                       std::filesystem::path(mapped_file("libtorch_cpu.so")).parent_path().string(),
                   ""};
  if (torch.build_id != built.torch_build_id) {
    libtorch.state = Finding::State::kMissing;
    libtorch.text +=
        ", but Capstan was built with " + std::string(built.torch_version) + " (build " + built.torch_build_id + ")";
    libtorch.remedy = "rebuild Capstan, or run scripts/setup; look for another LibTorch in LD_LIBRARY_PATH";
  }
  group.findings.push_back(libtorch);
  group.findings.push_back({"CPU", Finding::State::kFine,
                            at::get_cpu_capability() + ", " + std::to_string(at::get_num_threads()) +
                                " threads (OMP_NUM_THREADS changes that)",
                            ""});
  return group;
}

FindingGroup installed_plugins(const PluginIndex& index) {
  FindingGroup group{"Plugins", {}};
  std::map<std::string, std::vector<std::string>> by_tier;
  for (const IndexedPlugin& plugin : index.plugins()) {
    by_tier[tier_text(plugin.manifest)].push_back(plugin.manifest.name + " " + plugin.manifest.version);
  }
  for (const auto& [tier, names] : by_tier)
    group.findings.push_back(
        {tier.starts_with("none") ? "without LibTorch" : tier, Finding::State::kFine, joined(names), ""});
  if (index.plugins().empty()) {
    group.findings.push_back({"plugins", Finding::State::kMissing, "none were found",
                              "build or install Capstan as a whole, or name a folder with --plugin-path"});
  }
  for (const RejectedPlugin& plugin : index.rejected()) {
    group.findings.push_back(
        {plugin.file.filename().string(), Finding::State::kMissing, plugin.reason, "rebuild or remove the file"});
  }
  for (const std::string& warning : index.warnings()) {
    group.findings.push_back({"warning", Finding::State::kOptional, warning, ""});
  }
  return group;
}

/// The packages of Python that installed monitors need.
FindingGroup tracker_findings(const PluginIndex& index) {
  std::vector<const ComponentManifest*> trackers;
  std::vector<std::string> names;
  for (const IndexedPlugin& plugin : index.plugins()) {
    for (const ComponentManifest& component : plugin.manifest.components) {
      if (component.kind != "monitor" || component.python_package.empty()) continue;
      trackers.push_back(&component);
      names.push_back(python_package(component.python_package).name);
    }
  }
  FindingGroup group{"Trackers", {}};
  if (trackers.empty()) return group;
  const PythonPackages there = ask_python(names);
  for (std::size_t i = 0; i < trackers.size(); ++i) {
    const PythonPackage package = python_package(trackers[i]->python_package);
    const std::string fault = package_fault(package, there.python, there.versions[i]);
    if (fault.empty()) {
      group.findings.push_back({trackers[i]->type, Finding::State::kFine,
                                package.name + " " + *there.versions[i] + " (" + there.python + ")", ""});
    } else {
      group.findings.push_back(
          {trackers[i]->type, Finding::State::kOptional, fault,
           "only for the monitor '" + trackers[i]->type + "': " + install_command(package, there.python)});
    }
  }
  return group;
}

const char* state_text(Finding::State state) {
  switch (state) {
    case Finding::State::kFine:
      return "ok";
    case Finding::State::kOptional:
      return "optional";
    case Finding::State::kMissing:
      break;
  }
  return "missing";
}

/// `text` in lines of about a terminal's width, broken after commas.
std::vector<std::string> wrapped(const std::string& text) {
  constexpr std::size_t kWidth = 90;
  std::vector<std::string> lines(1);
  std::size_t begin = 0;
  while (begin < text.size()) {
    const auto comma = text.find(", ", begin);
    const std::string word = text.substr(begin, comma == std::string::npos ? comma : comma + 2 - begin);
    if (!lines.back().empty() && lines.back().size() + word.size() > kWidth) lines.emplace_back();
    lines.back() += word;
    begin += word.size();
  }
  return lines;
}

std::string findings_text(const std::vector<FindingGroup>& groups, const Terminal& terminal) {
  std::string text;
  for (const FindingGroup& group : groups) {
    std::vector<std::vector<std::string>> rows;
    for (const Finding& finding : group.findings) {
      std::string name = "  " + finding.name, state = state_text(finding.state);
      for (std::string& line : wrapped(finding.text + (finding.remedy.empty() ? "" : "; " + finding.remedy))) {
        while (line.ends_with(' ')) line.pop_back();
        rows.push_back({std::exchange(name, ""), std::exchange(state, ""), std::move(line)});
      }
    }
    text += terminal.bold(group.title) + "\n" + table_text(rows);
  }
  return text;
}

Json findings_json(const std::vector<FindingGroup>& groups) {
  Json json = Json::object();
  for (const FindingGroup& group : groups) {
    Json list = Json::array();
    for (const Finding& finding : group.findings) {
      Json entry = Json::object();
      entry["name"] = finding.name;
      entry["state"] = state_text(finding.state);
      entry["text"] = finding.text;
      if (!finding.remedy.empty()) entry["remedy"] = finding.remedy;
      list.push_back(std::move(entry));
    }
    json[group.title] = std::move(list);
  }
  return json;
}

}  // namespace

int doctor(const DoctorArguments& arguments) {
  const std::string torch_lib_dir = std::filesystem::path(mapped_file("libtorch_cpu.so")).parent_path().string();
  const PluginIndex plugins = scan_plugins(arguments.plugin_paths);
  std::vector<FindingGroup> groups = {this_installation(), installed_plugins(plugins), find_build_tools(),
                                      find_cuda(torch_lib_dir)};
  if (FindingGroup trackers = tracker_findings(plugins); !trackers.findings.empty()) {
    groups.push_back(std::move(trackers));
  }
  bool missing = false;
  for (const FindingGroup& group : groups) {
    for (const Finding& finding : group.findings) missing |= finding.state == Finding::State::kMissing;
  }
  if (arguments.json) {
    print(findings_json(groups).dump(2) + "\n");
  } else {
    print(findings_text(groups, Terminal(STDOUT_FILENO)) +
          (missing ? "\nSomething that training needs is missing: see above.\n"
                   : "\nAll that training on this machine needs is there.\n"));
  }
  return missing ? static_cast<int>(ExitCode::kFailure) : 0;
}

}  // namespace capstan::cli
