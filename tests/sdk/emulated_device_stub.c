/* A device emulated on the CPU, for the test of those who call it: its memory is unreadable except for kernels and
 * through host_view(), and it notes who called. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { kBytes = 4096 };
static char text[1024];
static char *memory, *view; /* one block, twice in the address space */

static void note(const char* what) { strncat(text, what, sizeof text - strlen(text) - 1); }

const char* calls(void) { return text; }

void* capstan_emulated_allocate(size_t bytes) {
  char what[64];
  snprintf(what, sizeof what, "allocate %zu, ", bytes);
  note(what);
  const int file = memfd_create("device", 0);
  if (ftruncate(file, kBytes) != 0) return NULL;
  memory = mmap(NULL, kBytes, PROT_NONE, MAP_SHARED, file, 0);
  view = mmap(NULL, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return memory;
}

void capstan_emulated_release(void* released) {
  note(released == memory ? "release, " : "release of what is not the device's, ");
}

void* capstan_emulated_host_view(const void* address) { return address == memory ? view : NULL; }

void capstan_emulated_kernel_begin(const char* name) {
  note("begin ");
  note(name);
  note(", ");
  mprotect(memory, kBytes, PROT_READ | PROT_WRITE);
}

void capstan_emulated_kernel_end(void) {
  note("end, ");
  mprotect(memory, kBytes, PROT_NONE);
}

void capstan_emulated_synchronize(void* stream) { note(stream ? "synchronize a stream, " : "synchronize, "); }
