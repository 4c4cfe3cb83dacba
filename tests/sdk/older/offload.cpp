// A back end as it was built with the SDK of ABI 1.2: its table ends behind `stats`. What lies there would crash
// whoever called it.
#include <cstring>
#include <map>
#include <string>

#include "capstan/plugin.h"

namespace {

/// The struct of 1.2, as sdk/abi/v1.2.layout has it.
struct Table {
  std::uint32_t struct_size;
  capstan_status (*register_buffer)(void*, std::uint64_t, std::uint64_t, capstan_error*);
  capstan_status (*write_async)(void*, std::uint64_t, const void*, std::uint64_t, std::uint64_t*, capstan_error*);
  capstan_status (*read_async)(void*, std::uint64_t, void*, std::uint64_t, std::uint64_t*, capstan_error*);
  capstan_status (*wait)(void*, std::uint64_t, capstan_error*);
  capstan_status (*stats)(void*, capstan_sink*, capstan_error*);
};
static_assert(sizeof(Table) == 48 && offsetof(Table, stats) == 40);
static_assert(sizeof(Table) == offsetof(capstan_offload, facts));

struct Memory {
  const capstan_host* host;
  std::map<std::uint64_t, std::string> buffers;
};

capstan_status fail(void* self, capstan_error* error, const std::string& text) {
  static_cast<Memory*>(self)->host->set_error(error, {text.data(), text.size()});
  return CAPSTAN_FAILED;
}

capstan_status register_buffer(void* self, std::uint64_t id, std::uint64_t, capstan_error*) {
  static_cast<Memory*>(self)->buffers[id] = "";
  return CAPSTAN_OK;
}

capstan_status write(void* self, std::uint64_t id, const void* from, std::uint64_t bytes, std::uint64_t* ticket,
                     capstan_error*) {
  static_cast<Memory*>(self)->buffers[id].assign(static_cast<const char*>(from), bytes);
  *ticket = id;
  return CAPSTAN_OK;
}

capstan_status read(void* self, std::uint64_t id, void* to, std::uint64_t bytes, std::uint64_t* ticket,
                    capstan_error* error) {
  const std::string& buffer = static_cast<Memory*>(self)->buffers[id];
  if (buffer.size() < bytes) return fail(self, error, "buffer " + std::to_string(id) + " was never written.");
  std::memcpy(to, buffer.data(), bytes);
  *ticket = id;
  return CAPSTAN_OK;
}

capstan_status wait(void*, std::uint64_t, capstan_error*) { return CAPSTAN_OK; }

capstan_status create(const capstan_host* host, capstan_str, void** self, capstan_error*) {
  *self = new Memory{host, {}};
  return CAPSTAN_OK;
}

void destroy(void* self) { delete static_cast<Memory*>(self); }

struct {
  Table table = {sizeof(Table), &register_buffer, &write, &read, &wait, nullptr};
  std::uintptr_t behind[8] = {0xdead, 0xdead, 0xdead, 0xdead, 0xdead, 0xdead, 0xdead, 0xdead};
} const kMemory;

const capstan_component kComponent = {sizeof(capstan_component),
                                      CAPSTAN_LITERAL("offload"),
                                      CAPSTAN_LITERAL("older_memory"),
                                      &create,
                                      &destroy,
                                      &kMemory.table};

}  // namespace

extern "C" {
extern const char capstan_manifest[] __attribute__((visibility("hidden")));
__attribute__((visibility("default"))) const capstan_plugin* capstan_plugin_v1(void) {
  static const capstan_component* const components[] = {&kComponent};
  static const capstan_plugin plugin = {sizeof(capstan_plugin), 1, 2, capstan_manifest, components, 1};
  return &plugin;
}
}
