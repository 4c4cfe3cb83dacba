// A plugin that lets exceptions cross the boundary: the C++ SDK makes that impossible, the raw ABI does not.
#include <stdexcept>

#include "capstan/plugin.h"

extern "C" const char capstan_manifest[] __attribute__((visibility("hidden")));

namespace {

capstan_status create(const capstan_host* host, capstan_str params, void**, capstan_error* error) {
  double number = 0;
  const char pointer[] = "/integer";
  if (host->json_number(params, {pointer, sizeof pointer - 1}, &number, error) != CAPSTAN_OK) return CAPSTAN_FAILED;
  if (number != 0) throw 42;
  throw std::runtime_error("no coffee left");
}

const capstan_monitor kMonitor = {
    sizeof(capstan_monitor), nullptr,
    [](void*, const capstan_metric* const*, size_t, capstan_error*) { return CAPSTAN_OK; }, nullptr, nullptr};

const capstan_component kComponent = {
    sizeof(capstan_component), {"monitor", 7}, {"Throwing", 8}, &create, [](void*) {}, &kMonitor};

const capstan_component* const kComponents[] = {&kComponent};

}  // namespace

extern "C" __attribute__((visibility("default"))) const capstan_plugin* capstan_plugin_v1(void) {
  static const capstan_plugin plugin = {sizeof(capstan_plugin), CAPSTAN_ABI_MAJOR, CAPSTAN_ABI_MINOR,
                                        capstan_manifest,       kComponents,       1};
  return &plugin;
}
