// A program that trains by capstan::Run as its first word says, with the configuration of its second.

#include <csignal>
#include <exception>
#include <iostream>
#include <string>

#include "core/run/run.hpp"

namespace {

void own_handler(int) {}

int run_loop(capstan::Run& run, bool ends_steps) {
  while (std::optional<capstan::Batch> batch = run.next()) {
    if (!ends_steps) continue;
    run.engine().backward(run.engine().forward(*batch));
    run.engine().step();
  }
  return run.exit_code();
}

/// Whether SIGINT has the handler again that it had before the run.
int run_between_handlers(capstan::Run& run) {
  std::signal(SIGINT, own_handler);
  const int code = run.train();
  return code == 0 && std::signal(SIGINT, SIG_DFL) == own_handler ? 0 : 9;
}

int run_as(const std::string& how, capstan::Run& run) {
  if (how == "loop" || how == "unfinished") return run_loop(run, how == "loop");
  if (how == "handlers") return run_between_handlers(run);
  if (how == "engine") return run.engine().rank();
  if (how == "twice") run.train();
  const int code = run.train();
  return how == "forgets its code" ? 0 : code;
}

}  // namespace

int main(int, char** argv) try {
  const std::string resume = argv[3] ? argv[3] : "";
  capstan::RunParts parts;
  if (std::string(argv[1]) == "no data") {
    parts.data = [](const capstan::LoadedConfig&, const capstan::Model&) { return capstan::RunData(); };
  }
  if (std::string(argv[1]) == "half a step") {
    parts.step = [](capstan::Engine& engine, const capstan::NextBatch& next) {
      capstan::Batch batch = next();
      engine.backward(engine.forward(batch));
      return 0.0;
    };
  }
  capstan::Run run(capstan::RunSource::file(argv[2]), parts, {.resume = resume});
  return run_as(argv[1], run);
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
