#include "core/run/elastic_account.hpp"

#include <algorithm>

#include "core/text/numbers.hpp"

namespace capstan {
namespace {

double number_of(const Json& json, const char* key) {
  const Json* value = json.find(key);
  return value != nullptr && value->is_number() ? value->as_number() : 0;
}

}  // namespace

Json ElasticAccount::json(double now) const {
  Json out = Json::object();
  out["begun"] = begun;
  out["repeated"] = repeated;
  out["regrouping"] = regrouping;
  out["waiting"] = waiting;
  out["taken"] = now;
  return out;
}

ElasticAccount ElasticAccount::go_on(const Json& saved, double since, double waited, double now) {
  ElasticAccount account{number_of(saved, "begun"), number_of(saved, "repeated"), number_of(saved, "regrouping"),
                         number_of(saved, "waiting")};
  const double taken = std::min(number_of(saved, "taken"), now), noticed = std::clamp(since, taken, now);
  account.repeated += noticed - taken;
  account.waiting += std::clamp(waited, 0.0, now - noticed);
  account.regrouping += std::max(0.0, now - noticed - waited);
  return account;
}

double ElasticAccount::goodput(double now) const {
  const double passed = now - begun;
  return passed > 0 ? std::clamp(1 - lost() / passed, 0.0, 1.0) : 1;
}

std::string ElasticAccount::text(std::int64_t losses, double now) const {
  return counted(losses, "process lost, ", "processes lost, ") + fixed(lost(), 1) + " s lost, goodput " +
         fixed(goodput(now) * 100, 1) + " %";
}

}  // namespace capstan
