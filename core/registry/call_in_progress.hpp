#pragma once

#include <string>

namespace capstan {

/// A function of a plugin, as a message names it. The texts live for ever.
struct PluginFunction {
  const char* component = nullptr;  // "plugin acme-muon (/opt/libmuon.so), optimizer 'Muon'"; null: none
  const char* name = nullptr;       // "update"; null while the plugin's file is loaded
};

/// While it lives, this thread is in a call of that function, for name_guilty_plugins(). Of nested calls the innermost
/// counts. Costs a few stores.
class CallInProgress {
 public:
  explicit CallInProgress(PluginFunction function) noexcept : before_(current_) { current_ = function; }
  ~CallInProgress() { current_ = before_; }
  CallInProgress(const CallInProgress&) = delete;

  /// This thread's call. Safe in a signal handler.
  static PluginFunction current() noexcept { return current_; }

 private:
  // Lies in memory that the thread has from its start: a signal handler must not make it.
  [[gnu::tls_model("initial-exec")]] static constinit thread_local PluginFunction current_;
  PluginFunction before_;
};

/// A copy of a text that lives for ever; the same one for the same text. [any thread]
const char* kept_text(const std::string& text);

}  // namespace capstan
