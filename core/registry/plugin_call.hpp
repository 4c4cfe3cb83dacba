#pragma once

#include <cstddef>
#include <exception>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "capstan/plugin.h"
#include "core/errors.hpp"
#include "core/registry/call_in_progress.hpp"

/// Where a plugin's error text arrives. The C side knows only the pointer.
struct capstan_error {
  std::string text;
};

/// Takes the text that a plugin writes.
struct capstan_sink {
  std::string text;
};

namespace capstan {

inline capstan_str as_str(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view as_view(capstan_str text) { return {text.data, text.size}; }

/// Catches plugins that break the rule, which plugins made with the C++ SDK cannot.
inline std::string escaped_exception_text(std::string_view what) {
  return "the plugin let an exception escape (" + std::string(what) +
         "). It must catch it and return CAPSTAN_FAILED; the C++ SDK does that.";
}

/// Runs one call into a plugin. `where` opens the text of the PluginError that a failure becomes.
template <class Call>
void call_plugin(std::string_view where, Call&& call) {
  capstan_error error;
  capstan_status status = CAPSTAN_FAILED;
  try {
    status = call(&error);
  } catch (const std::exception& thrown) {
    error.text = escaped_exception_text(thrown.what());
  } catch (...) {
    error.text = escaped_exception_text("not a std::exception");
  }
  if (status != CAPSTAN_OK) {
    throw PluginError(std::string(where) + ": " +
                      (error.text.empty() ? "failed without saying why. Ask the plugin's author." : error.text));
  }
}

/// The same for a function of a plugin's component, which is named where the call ends the process.
template <class Call>
void call_plugin(PluginFunction function, std::string_view where, Call&& call) {
  const CallInProgress in_progress(function);
  call_plugin(where, std::forward<Call>(call));
}

/// Runs `body` inside a function that a plugin calls; what it throws becomes the error's text.
template <class Body>
capstan_status guarded(capstan_error* error, Body&& body) noexcept {
  try {
    body();
    return CAPSTAN_OK;
  } catch (const std::exception& thrown) {
    error->text = thrown.what();
    return CAPSTAN_FAILED;
  }
}

/// Calls a C function that writes text to a sink, and returns the text.
template <class Call>
std::string plugin_text(PluginFunction function, std::string_view where, Call&& call) {
  capstan_sink sink;
  call_plugin(function, where, [&](capstan_error* error) { return call(&sink, error); });
  return std::move(sink.text);
}

/// True when a vtable or struct made by the other side is long enough to hold `member` and it is set.
#define CAPSTAN_HAS(table, member)                                                                                \
  ((table)->struct_size >= offsetof(std::remove_cvref_t<decltype(*(table))>, member) + sizeof((table)->member) && \
   (table)->member != nullptr)

}  // namespace capstan
