// What goes wrong before a component is made. BAD_EXPORTS and BAD_SYMBOLS are decided when it is built.
#include <fcntl.h>
#include <unistd.h>

#include <ctime>
#include <string>
#include <thread>

#include "bad.hpp"
#include "capstan/sdk/monitor.hpp"

#ifdef BAD_EXPORTS
extern "C" __attribute__((visibility("default"))) int second_symbol() { return 2; }
#endif
#ifdef BAD_SYMBOLS
namespace at {
std::string show_config();
}
#endif

namespace {

namespace sdk = capstan::sdk;

class Bad {
 public:
  Bad(const sdk::Host&, const sdk::Params&) {}
  void write(std::span<const sdk::Metric>) {
#ifdef BAD_SYMBOLS
    at::show_config();
#endif
  }
};

void burn_time() {
  const std::clock_t end = std::clock() + CLOCKS_PER_SEC / 5;
  while (std::clock() < end) {
  }
}

__attribute__((constructor)) void on_load() {
  if (breaks("prints")) (void)!::write(1, "hello\n", 6);
  if (breaks("thread")) std::thread([] { ::pause(); }).detach();
  if (breaks("file")) (void)::open("/dev/null", O_RDONLY);
  if (breaks("folder")) (void)!::chdir("/");
  if (breaks("environment")) ::setenv("CAPSTAN_BAD_LEFT", "here", 1);
  if (breaks("exit")) std::exit(7);
  while (breaks("hang")) ::pause();
  if (breaks("speed")) burn_time();
  if (breaks("copy")) {
    if (std::getenv("CAPSTAN_BAD_LOADED")) std::abort();
    ::setenv("CAPSTAN_BAD_LOADED", "1", 1);
  }
}

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::monitor<Bad, "Bad">)
