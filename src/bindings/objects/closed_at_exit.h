#pragma once

namespace stagelink::bindings {

// What a program may leave open: each of these that is left is closed when the interpreter exits,
// while it can still run.
//
// Thread-safety: used with the interpreter lock.
class ClosedAtExit {
 public:
  ClosedAtExit(const ClosedAtExit&) = delete;
  ClosedAtExit& operator=(const ClosedAtExit&) = delete;
  // Failures are the engine's to log; there is nobody left to tell.
  virtual void close_at_exit() = 0;

 protected:
  ClosedAtExit();
  virtual ~ClosedAtExit();
};

}  // namespace stagelink::bindings
