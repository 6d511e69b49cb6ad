#pragma once

#include <sys/uio.h>
#include <unistd.h>

namespace stagelink::transport {

// False where a seccomp filter or the kernel forbids process_vm_readv even within one process.
inline bool kernel_copies() {
  char from = 1;
  char to = 0;
  const iovec here{&to, 1};
  const iovec there{&from, 1};
  return ::process_vm_readv(::getpid(), &here, 1, &there, 1, 0) == 1;
}

}  // namespace stagelink::transport
