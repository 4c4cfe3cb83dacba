#include "core/registry/call_in_progress.hpp"

#include <mutex>
#include <set>

namespace capstan {

constinit thread_local PluginFunction CallInProgress::current_;

const char* kept_text(const std::string& text) {
  static std::mutex& mutex = *new std::mutex;
  static auto& texts = *new std::set<std::string>;
  const std::lock_guard lock(mutex);
  return texts.insert(text).first->c_str();
}

}  // namespace capstan
