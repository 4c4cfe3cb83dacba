#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "bad.hpp"
#include "capstan/sdk/component.hpp"

/// The slips of creation, which are the same for every kind. Every plugin of this folder has the parameter "knob".
inline void create_badly(const capstan::sdk::Params& params) {
  if (breaks("create_defaults")) throw capstan::sdk::Error("knob: is not to my taste.");
  if (breaks("create_wrong_params") && params.has("knob") && params.text("knob") == "text") std::abort();
  [[maybe_unused]] static void* volatile forgotten;
  if (breaks("create_leaks")) forgotten = std::malloc(64);
  if (breaks("create_footprint")) ::setenv("CAPSTAN_BAD_LEFT", "here", 1);
  if (breaks("create_in_folder")) (void)!::chdir("/");
  if (breaks("create_detached")) std::thread([] { ::pause(); }).detach();
  if (breaks("create_file")) (void)::open("/dev/null", O_RDONLY);
  if (breaks("create_threads")) {
    static std::atomic<int> inside{0};
    if (inside++ > 0) std::abort();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    --inside;
  }
  while (breaks("hang")) std::this_thread::yield();
  static_cast<void>(params.number("knob"));
}

/// Two slips that the C++ layer makes impossible.
template <class T>
capstan_status raw_create(const capstan_host* host, capstan_str params, void** self, capstan_error* error) {
  if (breaks("create_unterminated")) params.size = std::strlen(params.data);
  double knob = 1;
  if (breaks("create_bounds") && host->json_number(params, capstan::sdk::to_str("/knob"), &knob, error) == CAPSTAN_OK &&
      knob == 0) {
    return CAPSTAN_FAILED;
  }
  return capstan::sdk::create<T>(host, params, self, error);
}

template <class T>
constexpr capstan_component with_raw_create(capstan_component component) {
  component.create = &raw_create<T>;
  return component;
}
