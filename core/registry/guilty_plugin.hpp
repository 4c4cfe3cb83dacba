#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace capstan {

struct IndexedPlugin;

/// From here on SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL and exit() inside a plugin end with one line on standard error
/// that names the plugin, its file, the function, the step and the last checkpoint:
///
///   capstan: error: SIGSEGV in plugin acme-muon (/opt/libmuon.so), optimizer 'Muon', function update, step 12; the
///   last checkpoint is ckpt/global_step10. Tell the plugin's author.
///
/// Outside of plugins the signals print the functions that were called. Then the signal goes where it went before: to
/// the handler that this call found, or to the end of the process with that signal. exit() inside a plugin ends the
/// process at once with its code. The handlers run on an alternate stack, which the calling thread gets where it has
/// none. Call it once, from the thread that trains, after installing handlers of your own; later calls do nothing.
/// Capstan's programs call it, the library never does.
void name_guilty_plugins();

/// An alternate stack for signal handlers, where name_guilty_plugins() was called and the thread has none: without it
/// nothing can be said of a stack that has overflown. Lives and dies on one thread.
class SignalStack {
 public:
  SignalStack();
  ~SignalStack();
  SignalStack(const SignalStack&) = delete;

 private:
  std::unique_ptr<char[]> memory_;
};

/// What the line says beside the plugin. The last value of the process counts. [any thread]
void note_rank(int rank, int ranks);
void note_step(std::int64_t step);                // the one under way, the first being 1
void note_checkpoint(const std::string& folder);  // one that is complete

/// "plugin acme-muon (/opt/libmuon.so)", kept for ever.
const char* label_of(const IndexedPlugin& plugin);
/// The addresses of a plugin's file that was loaded, by the handle of dlopen.
void note_plugin_code(void* handle, const IndexedPlugin& plugin);

}  // namespace capstan
