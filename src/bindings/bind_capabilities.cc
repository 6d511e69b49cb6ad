#include <cerrno>
#include <cstring>
#include <string>

#include <dlfcn.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/unique_fd.h"
#include "bindings/bind.h"
#include "stagelink/version.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

nb::dict answer(bool available, const std::string& detail) {
  nb::dict part;
  part["available"] = available;
  part["detail"] = detail;
  return part;
}

nb::dict probe(const char* what, int fd) {
  const int error = errno;
  const UniqueFd owned(fd);
  return fd >= 0 ? answer(true, "")
                 : answer(false, std::string(what) + ": " + std::strerror(error));
}

// A library that a transport would need, in the loader's own words.
nb::dict probe_library(const char* name) {
  void* library = ::dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return answer(false, ::dlerror());
  ::dlclose(library);
  return answer(false, std::string(name) + " is installed, but this version does not use it");
}

// On this process itself: whether the kernel has it. What a peer permits shows at connect.
nb::dict probe_cma() {
  char from = 1;
  char to = 0;
  const iovec here{&to, 1};
  const iovec there{&from, 1};
  if (::process_vm_readv(::getpid(), &here, 1, &there, 1, 0) == 1) return answer(true, "");
  return answer(false, std::string("process_vm_readv: ") + std::strerror(errno));
}

nb::dict capabilities() {
  nb::dict transports;
  transports["shm"] =
      probe("memfd_create", ::memfd_create("stagelink-probe", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  transports["unix"] = probe("socket", ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  transports["cma"] = probe_cma();
  transports["tcp"] = probe("socket", ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  transports["ucx"] = probe_library("libucp.so.0");

  nb::dict all;
  all["version"] = kVersion;
  all["protocol"] = std::to_string(kProtocolMajor) + "." + std::to_string(kProtocolMinor);
  all["transports"] = transports;
  return all;
}

}  // namespace

void bind_capabilities(nb::module_& m) {
  m.def("capabilities", &capabilities, nb::sig("def capabilities() -> Capabilities"),
        "What this build can do on this machine: each transport, and why it is not available.");
}

}  // namespace stagelink::bindings
