#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/registry/host.hpp"
#include "core/registry/registry.hpp"

namespace capstan::test {

/// A back end of kind offload, made and driven as the engine does it. What fails throws PluginError.
class OffloadPlugin {
 public:
  explicit OffloadPlugin(const std::string& type, const Json& given = Json::object())
      : host_(logging_host()),
        component_(Registry(PluginIndex::scan()).create("test", "offload", type, completed(type, given), &host_)),
        table_(component_.vtable<capstan_offload>()) {}

  void add_buffer(std::uint64_t id, std::uint64_t bytes) {
    call([&](capstan_error* error) { return table_->register_buffer(component_.self(), id, bytes, error); });
  }
  void release_buffer(std::uint64_t id) {
    call([&](capstan_error* error) { return table_->release_buffer(component_.self(), id, error); });
  }
  std::uint64_t start(const std::vector<capstan_range>& ranges) {
    std::vector<const capstan_range*> pointers;
    for (const capstan_range& range : ranges) pointers.push_back(&range);
    std::uint64_t ticket = 0;
    call([&](capstan_error* error) {
      return table_->start(component_.self(), pointers.data(), pointers.size(), &ticket, error);
    });
    return ticket;
  }
  std::uint64_t write(std::uint64_t id, std::uint64_t offset, std::uint64_t bytes, void* from) {
    return start({{sizeof(capstan_range), 1, id, offset, bytes, from}});
  }
  std::uint64_t read(std::uint64_t id, std::uint64_t offset, std::uint64_t bytes, void* to) {
    return start({{sizeof(capstan_range), 0, id, offset, bytes, to}});
  }
  bool poll(std::uint64_t ticket) {
    int done = 0;
    call([&](capstan_error* error) { return table_->poll(component_.self(), ticket, &done, error); });
    return done != 0;
  }
  void wait(std::uint64_t ticket) {
    while (!poll(ticket)) std::this_thread::yield();
  }
  capstan_offload_fault fault(std::uint64_t ticket) {
    capstan_offload_fault fault{};
    fault.struct_size = sizeof fault;
    call([&](capstan_error* error) { return table_->fault(component_.self(), ticket, &fault, error); });
    return fault;
  }
  capstan_offload_facts facts() {
    capstan_offload_facts facts{};
    facts.struct_size = sizeof facts;
    call([&](capstan_error* error) { return table_->facts(component_.self(), &facts, error); });
    return facts;
  }
  /// Does nothing where the back end has no use for it.
  void lend(void* memory, std::uint64_t bytes) {
    if (CAPSTAN_HAS(table_, lend))
      call([&](capstan_error* error) { return table_->lend(component_.self(), memory, bytes, error); });
  }
  void take_back(void* memory) {
    if (CAPSTAN_HAS(table_, take_back)) table_->take_back(component_.self(), memory);
  }
  Json stats() {
    return Json::parse(plugin_text(
        component_.function("stats"), "stats",
        [&](capstan_sink* sink, capstan_error* error) { return table_->stats(component_.self(), sink, error); }));
  }
  /// What it said, one message a line.
  const std::string& log() const { return *log_; }

 private:
  static Json completed(const std::string& type, const Json& given) {
    const PluginIndex plugins = PluginIndex::scan();
    Json params = Json::object();
    for (const KeySpec& spec : plugins.find("offload", type).component->params) {
      const Json* value = given.find(spec.name);
      if (value != nullptr) {
        params[spec.name] = *value;
      } else if (spec.fallback) {
        params[spec.name] = *spec.fallback;
      }
    }
    return params;
  }

  capstan_host logging_host() {
    capstan_host host = make_host();
    host.ctx = log_.get();
    host.log = [](void* ctx, int, capstan_str text) {
      *static_cast<std::string*>(ctx) += std::string(as_view(text)) + "\n";
    };
    return host;
  }

  template <class Call>
  static void call(Call&& body) {
    call_plugin("", std::forward<Call>(body));
  }

  std::unique_ptr<std::string> log_ = std::make_unique<std::string>();
  capstan_host host_;
  Component component_;
  const capstan_offload* table_;
};

/// Why an engine of nvme cannot be tested here, as many containers refuse io_uring; empty: it can.
inline std::string nvme_refusal(const std::string& engine, const std::string& folder) {
  Json params = Json::object();
  params["nvme_path"] = folder;
  params["engine"] = engine;
  try {
    OffloadPlugin("nvme", params);
  } catch (const PluginError& error) {
    const std::string what = error.what();
    if (what.find(engine) == std::string::npos) throw;
    return "this machine refuses the engine " + what;
  }
  return {};
}

/// Memory as the engine's staging has it: aligned to 4096 bytes.
inline std::unique_ptr<char, void (*)(void*)> aligned_memory(std::size_t bytes) {
  auto* memory = static_cast<char*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
  if (memory == nullptr) throw std::bad_alloc();
  return {memory, &std::free};
}

/// The text of the exception that `body` throws; empty: none.
inline std::string thrown_by(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

/// Runs `body` in a child process, whose limits and filters are its own, and returns its text.
inline std::string in_child(const std::function<std::string()>& body) {
  int ends[2];
  if (pipe(ends) != 0) return "pipe failed";
  const pid_t child = fork();
  if (child == 0) {
    std::string text;
    const std::string thrown = thrown_by([&] { text = body(); });
    if (!thrown.empty()) text += "threw: " + thrown;
    const ssize_t written = ::write(ends[1], text.data(), text.size());
    _exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char part[4096];
  for (ssize_t got = 0; (got = ::read(ends[0], part, sizeof part)) > 0;) text.append(part, static_cast<size_t>(got));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) text += "ended by signal " + std::to_string(WTERMSIG(status));
  return text;
}

}  // namespace capstan::test
