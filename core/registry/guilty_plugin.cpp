#include "core/registry/guilty_plugin.hpp"

#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>

#include "core/registry/call_in_progress.hpp"
#include "core/registry/plugin_index.hpp"

namespace capstan {
namespace {

struct Signal {
  int number;
  const char* name;
};
constexpr Signal kSignals[] = {
    {SIGSEGV, "SIGSEGV"}, {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"}, {SIGFPE, "SIGFPE"}, {SIGILL, "SIGILL"}};

constexpr std::size_t kStackBytes = std::size_t{64} << 10;

/// Where the code and data of a plugin's file lie.
struct PluginCode {
  std::uintptr_t begin = 0, end = 0;
  const char* plugin = nullptr;
};

// All that a signal handler reads lies here, of a fixed size. Plugins beyond the table's are named by their calls only.
std::array<PluginCode, 256> codes;
std::atomic<std::size_t> code_count{0};
std::atomic<std::int64_t> step_under_way{0};
std::atomic<int> own_rank{-1};  // -1: the only one
std::array<std::array<char, 4096>, 2> checkpoints;
std::atomic<int> last_checkpoint{-1};  // which of the two; -1: none
std::mutex noting;

std::array<struct sigaction, NSIG> before;
std::atomic<pid_t> watched{0};  // the process that called name_guilty_plugins(), not those forked from it

/// One line, written without memory of the heap.
class Line {
 public:
  Line& operator<<(std::string_view text) {
    const std::size_t n = std::min(text.size(), text_.size() - size_);
    std::memcpy(text_.data() + size_, text.data(), n);
    size_ += n;
    return *this;
  }
  Line& operator<<(std::int64_t number) {
    std::array<char, 24> digits;
    std::size_t at = digits.size();
    auto rest = number < 0 ? 0 - static_cast<std::uint64_t>(number) : static_cast<std::uint64_t>(number);
    do digits[--at] = static_cast<char>('0' + rest % 10);
    while ((rest /= 10) > 0);
    if (number < 0) digits[--at] = '-';
    return *this << std::string_view(digits.data() + at, digits.size() - at);
  }
  void write() const { [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text_.data(), size_); }

 private:
  std::array<char, 12288> text_;
  std::size_t size_ = 0;
};

const char* plugin_at(std::uintptr_t address) {
  const std::size_t count = code_count.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < count; ++i) {
    if (address >= codes[i].begin && address < codes[i].end) return codes[i].plugin;
  }
  return nullptr;
}

std::uintptr_t instruction(const void* context) {
  const auto& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return static_cast<std::uintptr_t>(machine.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return machine.pc;
#else
  static_cast<void>(machine);
  return 0;
#endif
}

/// The rest of the line after the plugin's function: where the run was, and what is left of it.
void add_run(Line& line) {
  if (const int rank = own_rank.load(); rank >= 0) line << ", rank " << std::int64_t{rank};
  const std::int64_t step = step_under_way.load();
  if (step > 0) line << ", step " << step;
  if (const int last = last_checkpoint.load(); last >= 0) {
    line << "; the last checkpoint is " << checkpoints[static_cast<std::size_t>(last)].data();
  } else if (step > 0) {
    line << "; there is no checkpoint of this run";
  }
  line << ".";
}

void add_call(Line& line, PluginFunction function) {
  line << function.component;
  if (function.name != nullptr) {
    line << ", function " << function.name;
  } else {
    line << ", as it was loaded";
  }
}

/// The functions that this thread was in, a line each. The unwinder waits for the loader's lock, which the fault may
/// have left taken: SIGALRM ends the process then.
void print_stack() {
  constexpr unsigned kSeconds = 5;
  struct sigaction ends {
  }, previous{};
  ends.sa_handler = SIG_DFL;
  sigaction(SIGALRM, &ends, &previous);
  sigset_t alone, mask;
  sigemptyset(&alone);
  sigaddset(&alone, SIGALRM);
  pthread_sigmask(SIG_UNBLOCK, &alone, &mask);
  const unsigned left = alarm(kSeconds);
  std::array<void*, 64> frames;
  backtrace_symbols_fd(frames.data(), backtrace(frames.data(), static_cast<int>(frames.size())), STDERR_FILENO);
  alarm(left);
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  sigaction(SIGALRM, &previous, nullptr);
}

/// Names the plugin that this thread was in, or what else it was in. `code` is the plugin whose file the fault lies in,
/// or null.
void accuse(const char* signal, const char* code, bool lost_pages) {
  const PluginFunction function = CallInProgress::current();
  const bool in_call =
      function.component != nullptr && (code == nullptr || std::string_view(function.component).starts_with(code));
  Line line;
  line << "capstan: error: " << signal;
  if (!in_call && code == nullptr) {
    line << " outside of plugins";
    add_run(line);
    line << " The functions that were called, the last first:\n";
    line.write();
    return print_stack();
  }
  line << " in ";
  if (in_call) {
    add_call(line, function);
  } else {
    line << code << ", outside of a call";
  }
  add_run(line);
  if (lost_pages) {
    line << " Its file was cut short, or could not be read, while the run used it. Replace the file of a plugin by "
            "renaming another to its name.\n";
  } else {
    line << " Tell the plugin's author.\n";
  }
  line.write();
}

/// Only what is safe in a signal handler.
void on_signal(int number, siginfo_t* info, void* context) {
  const int error = errno;
  const bool of_this_process = info->si_code != SI_USER || info->si_pid == getpid();
  if (of_this_process && getpid() == watched.load()) {
    const auto* signal = std::find_if(std::begin(kSignals), std::end(kSignals),
                                      [number](const Signal& each) { return each.number == number; });
    // Of the address that could not be read only SIGBUS tells whose fault it is: it is memory of the file itself.
    const char* lost = number == SIGBUS ? plugin_at(reinterpret_cast<std::uintptr_t>(info->si_addr)) : nullptr;
    accuse(signal->name, lost != nullptr ? lost : plugin_at(instruction(context)), lost != nullptr);
  }
  sigaction(number, &before[static_cast<std::size_t>(number)], nullptr);
  // A fault comes again as the instruction does; a signal that was sent does not.
  if (info->si_code <= 0) syscall(SYS_tgkill, getpid(), gettid(), number);
  errno = error;
}

/// The destructors of the process must not run beside a plugin's call, on whichever thread that is.
void on_exit_in_call(int code, void*) {
  const PluginFunction function = CallInProgress::current();
  if (function.component == nullptr || getpid() != watched.load()) return;
  Line line;
  line << "capstan: error: exit(" << std::int64_t{code} << ") was called in ";
  add_call(line, function);
  add_run(line);
  line << " Tell the plugin's author.\n";
  line.write();
  std::fflush(stdout);
  _exit(code);
}

/// The last that is told of is called first: before what a plugin's file has to destroy.
void watch_exit() {
  if (watched.load() != 0) on_exit(on_exit_in_call, nullptr);
}

/// As long as the process: a signal may come at its very end. Used, or the compiler would drop the only pointer to it,
/// and LeakSanitizer would report it.
[[gnu::used]] const SignalStack* process_stack = nullptr;

}  // namespace

SignalStack::SignalStack() {
  stack_t present{};
  if (watched.load() == 0 || sigaltstack(nullptr, &present) != 0 || !(present.ss_flags & SS_DISABLE)) return;
  memory_ = std::make_unique<char[]>(kStackBytes);
  stack_t stack{};
  stack.ss_sp = memory_.get();
  stack.ss_size = kStackBytes;
  if (sigaltstack(&stack, nullptr) != 0) memory_.reset();
}

SignalStack::~SignalStack() {
  if (!memory_) return;
  stack_t none{};
  none.ss_flags = SS_DISABLE;
  sigaltstack(&none, nullptr);
}

void name_guilty_plugins() {
  if (pid_t none = 0; !watched.compare_exchange_strong(none, getpid())) return;
  process_stack = new SignalStack;
  // The first call loads what the unwinder needs.
  void* frame = nullptr;
  backtrace(&frame, 1);
  for (const Signal& signal : kSignals) {
    struct sigaction action {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(signal.number, &action, &before[static_cast<std::size_t>(signal.number)]);
  }
  watch_exit();
}

void note_rank(int rank, int ranks) { own_rank = ranks > 1 ? rank : -1; }

void note_step(std::int64_t step) { step_under_way = step; }

void note_checkpoint(const std::string& folder) {
  const std::lock_guard lock(noting);
  const int next = last_checkpoint.load() == 0 ? 1 : 0;  // not the one that a handler may be reading
  auto& text = checkpoints[static_cast<std::size_t>(next)];
  const std::size_t size = std::min(folder.size(), text.size() - 1);
  std::memcpy(text.data(), folder.data(), size);
  text[size] = '\0';
  last_checkpoint = next;
}

const char* label_of(const IndexedPlugin& plugin) {
  return kept_text("plugin " + plugin.manifest.name + " (" + plugin.file.string() + ")");
}

void note_plugin_code(void* handle, const IndexedPlugin& plugin) {
  struct Wanted {
    const link_map* map = nullptr;
    PluginCode code;
  } wanted;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &wanted.map) == 0) {
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* given) {
          auto& found = *static_cast<Wanted*>(given);
          if (info->dlpi_addr != found.map->l_addr || std::strcmp(info->dlpi_name, found.map->l_name) != 0) return 0;
          for (int i = 0; i < info->dlpi_phnum; ++i) {
            const ElfW(Phdr)& part = info->dlpi_phdr[i];
            if (part.p_type != PT_LOAD) continue;
            const std::uintptr_t begin = info->dlpi_addr + part.p_vaddr;
            if (found.code.end == 0 || begin < found.code.begin) found.code.begin = begin;
            found.code.end = std::max<std::uintptr_t>(found.code.end, begin + part.p_memsz);
          }
          return 1;
        },
        &wanted);
  }
  const std::lock_guard lock(noting);
  const std::size_t count = code_count.load();
  if (wanted.code.end > 0 && count < codes.size()) {
    wanted.code.plugin = label_of(plugin);
    codes[count] = wanted.code;
    code_count.store(count + 1, std::memory_order_release);
  }
  watch_exit();
}

}  // namespace capstan
