#pragma once

#include <functional>
#include <utility>

#include <Python.h>

namespace stagelink::bindings {

// Takes the interpreter lock back. On a thread that the interpreter has given up on (a daemon
// thread at exit) it never returns: such a thread may not run Python again, and to unwind it
// through C++ frames would end the process with a message.
void take_gil(PyThreadState* state) noexcept;

// From now on a daemon thread that comes back from the engine waits for the interpreter to go
// instead of reporting that its engine was closed. Called once, by the thread that exits.
void announce_exit() noexcept;

// Throws nb::python_error if a signal handler raised (Ctrl-C). Holds the interpreter lock.
void check_signals();

// For waits that ask: true once a signal handler has raised. Called without the interpreter lock;
// the exception is then set on this thread.
std::function<bool()> ended_by_signals();

// Runs f without the interpreter lock and returns its value. f must not touch Python objects.
template <typename F>
auto without_gil(F&& f) {
  PyThreadState* state = PyEval_SaveThread();
  try {
    auto value = std::forward<F>(f)();
    take_gil(state);
    return value;
  } catch (...) {
    take_gil(state);
    throw;
  }
}

}  // namespace stagelink::bindings
