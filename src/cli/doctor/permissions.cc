#include "cli/doctor/permissions.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

namespace stagelink::cli::doctor {
namespace {

constexpr const char* kWhy =
    "Private memory (what vLLM and torch have allocated) is then read over a socket, at about half "
    "the speed; memory of allocate() is not concerned.";

// Only system calls: runs in a forked child.
int copy_from(pid_t pid, const char* address) noexcept {
  char to = 0;
  const iovec here{&to, 1};
  const iovec there{const_cast<char*>(address), 1};
  if (::process_vm_readv(pid, &here, 1, &there, 1, 0) != 1) return errno;
  return to == *address ? 0 : EIO;
}

// A line of /proc/self/status, "Seccomp:\t2".
std::string status_line(const HostView& host, std::string_view key) {
  const auto text = read_text(host.proc + "/self/status");
  if (!text.has_value()) return {};
  for (const std::string_view line : split(*text, '\n')) {
    if (line.starts_with(key)) return std::string(trimmed(line.substr(key.size())));
  }
  return {};
}

// Empty: none that shows.
std::string container_of(const HostView& host) {
  if (read_text("/.dockerenv").has_value()) return "Docker";
  if (read_text("/run/.containerenv").has_value()) return "Podman";
  const std::string groups = read_text(host.proc + "/1/cgroup").value_or("");
  for (const auto& [mark, name] : {std::pair("kubepods", "Kubernetes"),
                                   std::pair("docker", "Docker"), std::pair("lxc", "LXC")}) {
    if (groups.find(mark) != std::string::npos) return name;
  }
  return {};
}

Finding forbidden(const HostView& host, const CopyProbe& probe) {
  const std::string what = fmt::format("process_vm_readv between two processes of this user: {}",
                                       std::strerror(probe.error));
  if (!probe.by_itself) {
    const bool filtered = status_line(host, "Seccomp:") == "2";
    const std::string container = container_of(host);
    return {Level::kWarning, "ptrace_forbidden",
            what + (filtered ? "; a seccomp filter forbids the call" : "; the kernel refuses it"),
            kWhy,
            container.empty()
                ? "Allow process_vm_readv and process_vm_writev in the filter, or leave cma out of "
                  "transports to say that it is meant so."
                : fmt::format("In {}: --cap-add SYS_PTRACE, or a seccomp profile that allows "
                              "process_vm_readv and process_vm_writev.",
                              container)};
  }
  return {Level::kWarning, "ptrace_forbidden",
          what + "; this process is not dumpable, or has capabilities that its children lack", kWhy,
          "Look for prctl(PR_SET_DUMPABLE, 0), set-uid programs and file capabilities (getcap)."};
}

Finding restricted(uint64_t scope) {
  const std::string what = fmt::format("kernel.yama.ptrace_scope is {}", scope);
  if (scope == 1) {
    return {Level::kWarning, "ptrace_scope", what + ": no process may read another one's memory",
            kWhy,
            "allow_ptrace: true in the engines that own memory (any process of this user may then "
            "debug them too), or sysctl kernel.yama.ptrace_scope=0."};
  }
  return {Level::kWarning, "ptrace_scope",
          what + ": none but the administrator may read another process's memory", kWhy,
          "sysctl kernel.yama.ptrace_scope=0; from 3 it needs a restart of the machine."};
}

}  // namespace

CopyProbe probe_copy(bool allow_ptrace) {
  static const char kSeen = 's';
  CopyProbe probe;
  probe.by_itself = copy_from(::getpid(), &kSeen) == 0;
  // As an engine does it, for the time of the probe.
  if (allow_ptrace) (void)::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  // The child reads its parent, as a stranger would: a parent may always read its children.
  if (child == 0) ::_exit(std::min(copy_from(parent, &kSeen), 255));
  int status = 0;
  pid_t ended = -1;
  while (child > 0 && (ended = ::waitpid(child, &status, 0)) < 0 && errno == EINTR) {
  }
  if (allow_ptrace) (void)::prctl(PR_SET_PTRACER, 0, 0, 0, 0);
  probe.error = ended == child && WIFEXITED(status) ? WEXITSTATUS(status) : EAGAIN;
  return probe;
}

std::vector<Finding> judge_copy(const HostView& host, const Subject& subject,
                                const CopyProbe& probe) {
  const auto& wanted = subject.engine.transports;
  if (std::ranges::find(wanted, "cma") == wanted.end()) {
    return {note("cma_off", "cma is not among transports: the kernel's copy is not used.")};
  }
  if (!subject.engine.secret_file.empty()) {
    return {note("cma_off",
                 "With a secret_file the kernel's copy (cma) is not used: it does not "
                 "pass the owner of the memory.")};
  }
  const uint64_t scope = read_number(host.proc + "/sys/kernel/yama/ptrace_scope").value_or(0);
  if (probe.error != 0) {
    Finding finding = probe.by_itself && scope > 0 ? restricted(scope) : forbidden(host, probe);
    const bool socket = std::ranges::any_of(
        wanted, [](const std::string& name) { return name == "unix" || name == "tcp"; });
    if (!socket) {
      finding.level = Level::kError;
      finding.why = "Private memory cannot be read at all: no socket is among transports.";
    }
    return {std::move(finding)};
  }
  if (scope > 1 || (scope == 1 && !subject.engine.allow_ptrace)) {
    // The probe may have had a capability that other processes lack.
    Finding finding = restricted(scope);
    finding.level = Level::kNote;
    finding.what += "; this process may do it all the same";
    return {std::move(finding)};
  }
  return {fine("Processes of this user may read each other's memory (process_vm_readv).")};
}

std::vector<Finding> check_permissions(const HostView& host, const Subject& subject) {
  return judge_copy(host, subject, probe_copy(subject.engine.allow_ptrace));
}

}  // namespace stagelink::cli::doctor
