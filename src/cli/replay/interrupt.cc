#include "cli/replay/interrupt.h"

#include <csignal>

namespace stagelink::cli::replay {
namespace {

volatile std::sig_atomic_t interrupted_flag = 0;

void on_signal(int) { interrupted_flag = 1; }

void handle(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;  // Without SA_RESTART: a wait comes back at once.
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  interrupted_flag = 0;
  handle(on_signal);
}

InterruptGuard::~InterruptGuard() { handle(SIG_DFL); }

bool InterruptGuard::interrupted() noexcept { return interrupted_flag != 0; }

}  // namespace stagelink::cli::replay
