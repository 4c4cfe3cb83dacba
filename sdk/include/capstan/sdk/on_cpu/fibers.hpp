#pragma once

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstddef>
#include <new>

#if defined(__has_feature)  // clang's way to say what GCC defines by itself
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#if __has_feature(thread_sanitizer) && !defined(__SANITIZE_THREAD__)
#define __SANITIZE_THREAD__ 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

/// Calls longjmp by another name: _FORTIFY_SOURCE checks calls of longjmp, and ends a process that jumps between
/// stacks.
extern "C" [[noreturn]] void capstan_on_cpu_jump(jmp_buf to, int value) __asm__("_longjmp");

namespace capstan::sdk::kernels_on_cpu {

/// A function on a stack of its own, which stops where it calls yield() and goes on at the next resume(). A fiber stays
/// on the thread that made it.
class Fiber {
 public:
  using Task = void (*)(void* context);

  /// Throws std::bad_alloc where there is no memory for the stack.
  Fiber() : stack_(mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (stack_ == MAP_FAILED) throw std::bad_alloc();
    // A kernel whose arrays outgrow the stack faults here, rather than in the memory of another fiber.
    mprotect(stack_, static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), PROT_NONE);
#ifdef __SANITIZE_THREAD__
    own_.thread = __tsan_create_fiber(0);
#endif
  }
  Fiber(const Fiber&) = delete;
  ~Fiber() {
#ifdef __SANITIZE_THREAD__
    __tsan_destroy_fiber(own_.thread);
#endif
    munmap(stack_, kStackBytes);
  }

  /// Calls task(context) on the fiber's stack; returns when the task does, or at its first yield(). An exception that
  /// leaves the task ends the process.
  void start(Task task, void* context) {
    task_ = task;
    context_ = context;
    done_ = false;
    resume();
  }
  /// Goes on after the last yield().
  void resume() {
#ifdef __SANITIZE_ADDRESS__
    own_.stack = stack_;
    own_.bytes = kStackBytes;
#endif
#ifdef __SANITIZE_THREAD__
    resumer_.thread = __tsan_get_current_fiber();
#endif
    if (!started_) prepare();
    change(resumer_, own_);
  }
  /// For the task alone: goes on after the resume() that let it run.
  void yield() { change(own_, resumer_); }
  /// Whether the task has returned.
  bool done() const { return done_; }

 private:
  static constexpr std::size_t kStackBytes = 256 << 10;  // of which pages that no kernel touches cost nothing

  /// Where a stack is left, and what the sanitizers want to know of it.
  struct Place {
    ucontext_t context;
    jmp_buf jump;
    bool left = false;
#ifdef __SANITIZE_ADDRESS__
    void* fake_stack = nullptr;
    const void* stack = nullptr;
    std::size_t bytes = 0;
#endif
#ifdef __SANITIZE_THREAD__
    void* thread = nullptr;
#endif
  };

  /// Leaves one stack for the other. Returns when somebody comes back.
  void change(Place& from, Place& to) {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&from.fake_stack, to.stack, to.bytes);
    swapcontext(&from.context, &to.context);
    arrive(from);
#else
#ifdef __SANITIZE_THREAD__
    __tsan_switch_to_fiber(to.thread, 0);
#endif
    from.left = true;
    if (_setjmp(from.jump) == 0) go_to(to);
#endif
  }
  /// By longjmp, because swapcontext calls the kernel each time.
  [[noreturn]] static void go_to(Place& to) {
    if (to.left) capstan_on_cpu_jump(to.jump, 1);
    setcontext(&to.context);
    __builtin_unreachable();
  }

  void prepare() {
    started_ = true;
    starting_ = this;
    getcontext(&own_.context);
    own_.context.uc_stack.ss_sp = stack_;
    own_.context.uc_stack.ss_size = kStackBytes;
    own_.context.uc_link = nullptr;
    makecontext(&own_.context, &Fiber::loop, 0);
  }
  static void loop() noexcept {
    Fiber& self = *starting_;
#ifdef __SANITIZE_ADDRESS__
    self.arrive(self.own_);
#endif
    for (;;) {
      self.task_(self.context_);
      self.done_ = true;
      self.yield();
    }
  }
#ifdef __SANITIZE_ADDRESS__
  /// Ends the change of stacks that brought us to `here`, from the other side.
  void arrive(Place& here) {
    Place& other = &here == &own_ ? resumer_ : own_;
    __sanitizer_finish_switch_fiber(here.fake_stack, &other.stack, &other.bytes);
  }
#endif

  static inline thread_local Fiber* starting_ = nullptr;  // makecontext hands over integers only

  void* stack_;
  Place resumer_, own_;
  Task task_ = nullptr;
  void* context_ = nullptr;
  bool started_ = false, done_ = true;
};

}  // namespace capstan::sdk::kernels_on_cpu
