#include "transport/cma/cma_refusal.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

namespace stagelink::transport {
namespace {

// 0 or what the call fails with even where nothing stands in its way.
int error_on_ourselves() noexcept {
  char from = 1;
  char to = 0;
  const iovec here{&to, 1};
  const iovec there{&from, 1};
  return ::process_vm_readv(::getpid(), &here, 1, &there, 1, 0) == 1 ? 0 : errno;
}

// 0 also where the kernel has no Yama.
int ptrace_scope() {
  std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
  int scope = 0;
  file >> scope;
  return file ? scope : 0;
}

Status why_not_permitted(pid_t pid, uid_t uid) {
  if (uid != ::geteuid()) {
    return Status(Reason::kOtherUser, fmt::format("process {} is of uid {}, this one of uid {}",
                                                  pid, uid, static_cast<unsigned>(::geteuid())));
  }
  // The files of a process that is not dumpable belong to root.
  struct stat proc {};
  if (::stat(fmt::format("/proc/{}/status", pid).c_str(), &proc) == 0 && proc.st_uid != uid) {
    return Status(Reason::kPermission,
                  fmt::format("process {} is not dumpable (PR_SET_DUMPABLE, or set-uid)", pid));
  }
  if (const int scope = ptrace_scope(); scope == 1) {
    return Status(Reason::kPermission,
                  "kernel.yama.ptrace_scope is 1: set option allow_ptrace in the peer's engine");
  } else if (scope > 1) {
    return Status(Reason::kPermission,
                  fmt::format("kernel.yama.ptrace_scope is {}: it allows this to no one", scope));
  }
  return Status(
      Reason::kPermission,
      fmt::format("process {} is in another user namespace, or has capabilities that this "
                  "one lacks",
                  pid));
}

}  // namespace

Status why_refused(int error, pid_t pid, uid_t uid) {
  if (error == ESRCH) return Status(Reason::kPeerLost, fmt::format("process {} has ended", pid));
  if (error == EFAULT) {
    return Status(Reason::kUnsupported,
                  fmt::format("process {} has nothing where the peer's engine says it is", pid));
  }
  if (const int own = error_on_ourselves(); own != 0) {
    return Status(Reason::kUnsupported,
                  fmt::format("the kernel or a seccomp filter forbids process_vm_readv ({})",
                              std::strerror(own)));
  }
  if (error == EPERM) return why_not_permitted(pid, uid);
  return Status(Reason::kSystem, fmt::format("process_vm_readv: {}", std::strerror(error)));
}

}  // namespace stagelink::transport
