#pragma once

#include <string>

namespace capstan {

/// How the language of the program that runs engines calls what messages tell people to do; at first C++.
struct HostWords {
  std::string gather = "capstan::Engine::gather";  // what holds parameters in memory
  std::string call = "Engine::";                   // what stands before the name of an engine's function
};

/// A binding sets them once, before the first engine.
HostWords& host_words();

/// "Engine::load_teacher()", in the program's language.
std::string engine_call(const std::string& function);

}  // namespace capstan
