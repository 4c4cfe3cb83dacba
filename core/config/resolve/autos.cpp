#include "core/config/resolve/autos.hpp"

#include <map>
#include <string>

#include "core/schema/value.hpp"

namespace capstan {
namespace {

struct Path {
  std::string section, key;
};

Path split(const std::string& path) {
  const auto dot = path.rfind('.');
  if (dot == std::string::npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

void report_open(const std::string& path, const ConfigContext& context, Problems& problems) {
  const bool length = split(path).key == "total_num_steps";
  if (context.check_only) {
    problems.notice(path, std::string("\"auto\" is left to the program that trains") +
                              (length ? "; capstan train takes it from capstan.run.steps, which --steps sets." : "."));
  } else {
    problems.error(path, std::string("\"auto\" is not supported here: there is no default and nothing to take it from. "
                                     "Write a value") +
                             (length ? ", or say how long the run is: capstan.run.steps or --steps." : "."));
  }
}

std::string reason_text(const ResolvedAuto& resolved) {
  return resolved.reason.empty() ? "" : " (" + resolved.reason + ")";
}

/// Several of one section: "'auto' is: lr 0.001, betas [0.9, 0.999]; taken as not given: x."
std::string section_text(const std::vector<const ResolvedAuto*>& autos) {
  std::string values, absent;
  for (const ResolvedAuto* resolved : autos) {
    const std::string key = split(resolved->path).key;
    if (resolved->value.is_null()) {
      absent += (absent.empty() ? "" : ", ") + key;
    } else {
      values += (values.empty() ? "" : ", ") + key + " " + shown(resolved->value) + reason_text(*resolved);
    }
  }
  return "\"auto\" is " + values + (values.empty() || absent.empty() ? "" : "; ") +
         (absent.empty() ? "" : "taken as not given: " + absent) + ".";
}

}  // namespace

void report_autos(const std::vector<ResolvedAuto>& autos, const ConfigContext& context, Problems& problems) {
  std::map<std::string, std::vector<const ResolvedAuto*>> sections;
  for (const ResolvedAuto& resolved : autos) {
    if (resolved.open) {
      report_open(resolved.path, context, problems);
    } else {
      const std::string section = split(resolved.path).section;
      // Keys at the top level have no section to be told of together.
      sections[section.empty() ? resolved.path : section].push_back(&resolved);
    }
  }
  for (const auto& [section, members] : sections) {
    if (members.size() > 1) {
      problems.notice(section, section_text(members));
    } else {
      const ResolvedAuto& only = *members.front();
      problems.notice(only.path, only.value.is_null() ? "\"auto\" is taken as not given."
                                                      : "\"auto\" is " + shown(only.value) + reason_text(only) + ".");
    }
  }
}

}  // namespace capstan
