#pragma once

namespace capstan::python {

/// While one lives, Ctrl-C waits: KeyboardInterrupt comes as soon as Python goes on after its end. For a call that must
/// not end half way, where code of Python's that it runs would take the interrupt. In threads, and beside a handler of
/// the program's own, it does nothing: these decide. Used with the interpreter's lock.
class InterruptsWait {
 public:
  /// `main_thread`: Python's, of PyThread_get_thread_ident().
  explicit InterruptsWait(unsigned long main_thread);
  ~InterruptsWait();
  InterruptsWait(const InterruptsWait&) = delete;

 private:
  bool waits_ = false;
};

}  // namespace capstan::python
