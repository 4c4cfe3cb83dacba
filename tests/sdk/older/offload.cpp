// A back end whose table ends behind `stats`. The numbers behind it would crash whoever called them.
#include <cstring>
#include <map>
#include <string>

#include "capstan/plugin.h"

namespace {

struct Table {
  std::uint32_t struct_size;
  capstan_status (*register_buffer)(void*, std::uint64_t, std::uint64_t, capstan_error*);
  capstan_status (*start)(void*, const capstan_range* const*, std::size_t, std::uint64_t*, capstan_error*);
  capstan_status (*poll)(void*, std::uint64_t, int*, capstan_error*);
  capstan_status (*stats)(void*, capstan_sink*, capstan_error*);
};
static_assert(offsetof(Table, stats) == offsetof(capstan_offload, stats));
static_assert(sizeof(Table) == offsetof(capstan_offload, facts));

struct Memory {
  const capstan_host* host;
  std::map<std::uint64_t, std::string> buffers;
};

capstan_status fail(void* self, capstan_error* error, const std::string& text) {
  static_cast<Memory*>(self)->host->set_error(error, {text.data(), text.size()});
  return CAPSTAN_FAILED;
}

capstan_status register_buffer(void* self, std::uint64_t id, std::uint64_t bytes, capstan_error*) {
  static_cast<Memory*>(self)->buffers[id].resize(bytes);
  return CAPSTAN_OK;
}

capstan_status start(void* self, const capstan_range* const* ranges, std::size_t count, std::uint64_t* ticket,
                     capstan_error* error) {
  auto& buffers = static_cast<Memory*>(self)->buffers;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string& buffer = buffers[ranges[i]->buffer_id];
    const bool fits = ranges[i]->bytes <= buffer.size() && ranges[i]->offset <= buffer.size() - ranges[i]->bytes;
    if (!fits) return fail(self, error, "a range is outside of buffer " + std::to_string(ranges[i]->buffer_id) + ".");
  }
  for (std::size_t i = 0; i < count; ++i) {
    char* const inside = buffers[ranges[i]->buffer_id].data() + ranges[i]->offset;
    const bool write = ranges[i]->write != 0;
    std::memcpy(write ? inside : ranges[i]->memory, write ? ranges[i]->memory : inside, ranges[i]->bytes);
  }
  *ticket = 1;
  return CAPSTAN_OK;
}

capstan_status poll(void*, std::uint64_t, int* done, capstan_error*) {
  *done = 1;
  return CAPSTAN_OK;
}

capstan_status create(const capstan_host* host, capstan_str, void** self, capstan_error*) {
  *self = new Memory{host, {}};
  return CAPSTAN_OK;
}

void destroy(void* self) { delete static_cast<Memory*>(self); }

struct {
  Table table = {sizeof(Table), &register_buffer, &start, &poll, nullptr};
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
  static const capstan_plugin plugin = {sizeof(capstan_plugin), CAPSTAN_ABI_MAJOR, CAPSTAN_ABI_MINOR,
                                        capstan_manifest,       components,        1};
  return &plugin;
}
}
