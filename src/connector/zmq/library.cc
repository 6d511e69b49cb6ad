#include "connector/zmq/library.h"

#include <array>
#include <cerrno>

#include <dlfcn.h>
#include <fmt/format.h>
#include <zmq.h>

namespace stagelink::zmq {
namespace {

constexpr const char* kLibraryName = "libzmq.so.5";

// errno values of libzmq as reasons; whatever is not here is `system`.
struct ErrorRow {
  int number;
  Reason reason;
};
constexpr std::array kErrors = {
    ErrorRow{EAGAIN, Reason::kTimedOut},
    ErrorRow{EADDRINUSE, Reason::kPortInUse},
    ErrorRow{EACCES, Reason::kPermission},
    ErrorRow{EADDRNOTAVAIL, Reason::kInvalidArgument},
    ErrorRow{ENODEV, Reason::kInvalidArgument},
    ErrorRow{EINVAL, Reason::kInvalidArgument},
    ErrorRow{EPROTONOSUPPORT, Reason::kInvalidArgument},
    ErrorRow{EMFILE, Reason::kNofile},
    ErrorRow{ENFILE, Reason::kNofile},
    ErrorRow{EHOSTUNREACH, Reason::kUnreachable},
    ErrorRow{ETERM, Reason::kClosed},
};

template <typename Function>
void find(void* handle, const char* name, Function& function, std::string& missing) {
  void* const address = ::dlsym(handle, name);
  if (address == nullptr) missing = name;
  function = reinterpret_cast<Function>(address);
}

std::string find_all(void* handle, Functions& out) {
  std::string missing;
  find(handle, "zmq_ctx_new", out.ctx_new, missing);
  find(handle, "zmq_ctx_set", out.ctx_set, missing);
  find(handle, "zmq_ctx_term", out.ctx_term, missing);
  find(handle, "zmq_socket", out.socket, missing);
  find(handle, "zmq_close", out.close, missing);
  find(handle, "zmq_setsockopt", out.setsockopt, missing);
  find(handle, "zmq_getsockopt", out.getsockopt, missing);
  find(handle, "zmq_bind", out.bind, missing);
  find(handle, "zmq_connect", out.connect, missing);
  find(handle, "zmq_msg_init", out.msg_init, missing);
  find(handle, "zmq_msg_recv", out.msg_recv, missing);
  find(handle, "zmq_msg_data", out.msg_data, missing);
  find(handle, "zmq_msg_size", out.msg_size, missing);
  find(handle, "zmq_msg_more", out.msg_more, missing);
  find(handle, "zmq_msg_close", out.msg_close, missing);
  find(handle, "zmq_send", out.send, missing);
  find(handle, "zmq_poll", out.poll, missing);
  find(handle, "zmq_errno", out.error_number, missing);
  find(handle, "zmq_strerror", out.error_text, missing);
  find(handle, "zmq_version", out.version, missing);
  find(handle, "zmq_has", out.has, missing);
  find(handle, "zmq_socket_monitor", out.socket_monitor, missing);
  return missing;
}

}  // namespace

Result<std::shared_ptr<const Library>> Library::load(const std::string& path) {
  const char* const name = path.empty() ? kLibraryName : path.c_str();
  void* const handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    return Status(Reason::kNotFound,
                  fmt::format("ZeroMQ could not be loaded ({}). Install Debian's libzmq5 or the "
                              "Python package pyzmq",
                              why != nullptr ? why : name));
  }
  Functions functions{};
  if (const std::string missing = find_all(handle, functions); !missing.empty()) {
    ::dlclose(handle);
    return Status(Reason::kNotFound, fmt::format("{} has no function {}", name, missing));
  }
  std::shared_ptr<const Library> library(new Library(functions));
  int major = 0;
  int minor = 0;
  int patch = 0;
  functions.version(&major, &minor, &patch);
  if (major != 4 || minor < 2) {
    return Status(Reason::kVersion,
                  fmt::format("{} is ZeroMQ {}, needed is 4.2 or later", name, library->version()));
  }
  return library;
}

std::string Library::version() const {
  int major = 0;
  int minor = 0;
  int patch = 0;
  functions_.version(&major, &minor, &patch);
  return fmt::format("{}.{}.{}", major, minor, patch);
}

Status Library::last_error(std::string_view what) const {
  const int number = functions_.error_number();
  Reason reason = Reason::kSystem;
  for (const ErrorRow& row : kErrors) {
    if (row.number == number) reason = row.reason;
  }
  return Status(reason, fmt::format("{}: {}", what, functions_.error_text(number)));
}

}  // namespace stagelink::zmq
