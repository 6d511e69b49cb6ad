#include "bindings/convert/gil.h"

#include <atomic>
#include <chrono>
#include <thread>

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

namespace stagelink::bindings {
namespace {

// How long a daemon thread waits for the interpreter to go before it carries on after all: an exit
// handler of somebody else may be joining it.
constexpr auto kExitPatience = std::chrono::seconds(2);

std::atomic<bool> exiting{false};
std::atomic<std::thread::id> exiting_thread{};

bool interpreter_is_gone() noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

[[noreturn]] void park() noexcept {
  for (;;) ::pause();
}

void wait_for_exit() noexcept {
  const auto until = std::chrono::steady_clock::now() + kExitPatience;
  while (!interpreter_is_gone() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace

void take_gil(PyThreadState* state) noexcept {
  const bool may_exit = exiting_thread.load() == std::this_thread::get_id();
  if (exiting.load() && !may_exit) wait_for_exit();
  if (interpreter_is_gone() && !may_exit) park();
  try {
    PyEval_RestoreThread(state);
  } catch (abi::__forced_unwind&) {
    park();  // The interpreter went while this thread queued for its lock.
  }
}

void announce_exit() noexcept {
  exiting_thread.store(std::this_thread::get_id());
  exiting.store(true);
}

void check_signals() {
  if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
}

std::function<bool()> ended_by_signals() {
  return [] {
    const nanobind::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0;
  };
}

}  // namespace stagelink::bindings
