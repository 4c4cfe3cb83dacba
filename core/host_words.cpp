#include "core/host_words.hpp"

namespace capstan {

HostWords& host_words() {
  static HostWords words;
  return words;
}

std::string engine_call(const std::string& function) { return host_words().call + function + "()"; }

}  // namespace capstan
