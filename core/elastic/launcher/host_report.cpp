#include "core/elastic/launcher/host_report.hpp"

#include <stdexcept>
#include <utility>

namespace capstan {

std::int64_t count_in(const Json& json, const char* key, std::int64_t most) {
  const std::int64_t value = json.at(key).as_integer();
  if (value >= 0 && value <= most) return value;
  throw std::out_of_range("'" + std::string(key) + "' is " + std::to_string(value) + ", not from 0 to " +
                          std::to_string(most));
}

HostReport HostReport::of(const Json& json) {
  HostReport report;
  for (const Json& one : json.at("processes").as_array()) {
    report.processes.push_back({count_in(one, "number"), count_in(one, "process"), one.at("able").as_bool(),
                                one.at("leaves").as_bool(), count_in(one, "paused")});
  }
  report.wanted = count_in(json, "wanted");
  report.spares = count_in(json, "spares");
  report.broken = count_in(json, "broken");
  if (const Json* why = json.find("why_broken")) report.why_broken = why->as_string();
  report.lacks = count_in(json, "lacks");
  report.meeting = count_in(json, "meeting");
  report.place = {static_cast<int>(count_in(json, "port", 65535)), json.at("secret").as_string()};
  if (json.find("written") != nullptr) report.written = count_in(json, "written", std::int64_t{1} << 48);
  report.step = {count_in(json, "generation"), json.at("step").as_integer(), json.at("at").as_number(),
                 json.at("kept").as_integer()};
  return report;
}

Json HostReport::json() const {
  Json out = Json::object();
  out["processes"] = Json::array();
  for (const Process& one : processes) {
    Json process = Json::object();
    process["number"] = one.number;
    process["process"] = one.process;
    process["able"] = one.able;
    process["leaves"] = one.leaves;
    process["paused"] = one.paused;
    out["processes"].push_back(std::move(process));
  }
  out["wanted"] = wanted;
  out["spares"] = spares;
  out["broken"] = broken;
  if (!why_broken.empty()) out["why_broken"] = why_broken;
  out["lacks"] = lacks;
  out["meeting"] = meeting;
  out["port"] = std::int64_t{place.port};
  out["secret"] = place.secret;
  out["generation"] = step.generation;
  out["step"] = step.step;
  out["at"] = step.at;
  out["kept"] = step.kept;
  if (written > 0) out["written"] = written;
  return out;
}

}  // namespace capstan
