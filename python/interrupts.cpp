#include "python/interrupts.hpp"

#include <Python.h>

#include <csignal>

namespace capstan::python {
namespace {

volatile std::sig_atomic_t caught = 0;
bool waiting = false;         // of the main thread alone
struct sigaction handler {};  // Python's, while ours is in its place

void note(int) { caught = 1; }

PyObject* function_of(const char* module, const char* name) {
  PyObject* const found = PyImport_ImportModule(module);
  PyObject* const function = found ? PyObject_GetAttrString(found, name) : nullptr;
  Py_XDECREF(found);
  if (function == nullptr) PyErr_Clear();
  return function;
}

/// Whether Ctrl-C raises KeyboardInterrupt, as it does where nobody has set a handler.
bool raises() {
  static PyObject* const get = function_of("_signal", "getsignal");
  static PyObject* const usual = function_of("_signal", "default_int_handler");
  static PyObject* const number = PyLong_FromLong(SIGINT);
  if (get == nullptr || usual == nullptr || number == nullptr) return false;
  PyObject* const now = PyObject_CallOneArg(get, number);
  if (now == nullptr) PyErr_Clear();
  Py_XDECREF(now);  // the table of handlers holds it
  return now == usual;
}

}  // namespace

// The handler of the process is changed, not Python's: the functions of the module signal take longer than a whole step
// may, and code that asks for the handler sees the usual one.
InterruptsWait::InterruptsWait(unsigned long main_thread) {
  if (PyThread_get_thread_ident() != main_thread || waiting || !raises()) return;
  struct sigaction ours {};
  ours.sa_handler = &note;
  sigemptyset(&ours.sa_mask);
  caught = 0;
  waits_ = waiting = sigaction(SIGINT, &ours, &handler) == 0;
}

InterruptsWait::~InterruptsWait() {
  if (!waits_) return;
  waiting = false;
  sigaction(SIGINT, &handler, nullptr);
  if (caught != 0) PyErr_SetInterrupt();
}

}  // namespace capstan::python
