// A data plane for the transfer engine of openyuanrong-datasystem 0.8.1 that needs no NPU: the
// owner tells where the bytes lie, the requester copies them out of its process.
//
// Loaded with RTLD_GLOBAL before `yr.datasystem`, it takes the place of the engine's default
// constructor, which chooses the data plane: everything else is the package's own code.
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <dlfcn.h>
#include <link.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "datasystem/transfer_engine/data_plane_backend.h"

namespace {

using datasystem::ConnectionSpec;
using datasystem::ErrorCode;
using datasystem::Result;

struct Piece {
  int64_t pid = 0;
  uint64_t address = 0;
  uint64_t bytes = 0;
};

Result failed(const std::string& what) {
  return Result(ErrorCode::kRuntimeError, what + ": " + std::strerror(errno));
}

// An abstract UNIX socket; the name is the root info.
sockaddr_un address_of(const std::string& root, socklen_t* bytes) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, root.data(), root.size());
  *bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + root.size());
  return address;
}

class CpuPlane final : public datasystem::IDataPlaneBackend {
 public:
  ~CpuPlane() override {
    for (const auto& [root, fd] : listening_) ::close(fd);
    for (const auto& [key, fd] : sending_) ::close(fd);
    for (const auto& [key, receiver] : receiving_) ::close(receiver.fd);
  }
  bool RequiresAclRuntime() const override { return false; }

  Result CreateRootInfo(std::string* root) override {
    const std::lock_guard lock(mutex_);
    *root = "cpu-plane-" + std::to_string(::getpid()) + "-" +
            std::to_string(reinterpret_cast<uintptr_t>(this)) + "-" + std::to_string(++roots_);
    socklen_t bytes = 0;
    const sockaddr_un address = address_of(*root, &bytes);
    const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || ::bind(fd, reinterpret_cast<const sockaddr*>(&address), bytes) != 0 ||
        ::listen(fd, 4) != 0) {
      return failed("bind");
    }
    listening_[*root] = fd;
    return Result::OK();
  }

  Result InitRecv(const ConnectionSpec& spec, const std::string& root) override {
    const std::lock_guard lock(mutex_);
    const auto listener = listening_.find(root);
    if (listener == listening_.end()) return Result(ErrorCode::kInvalid, "unknown root info");
    Receiver& receiver = receiving_[key(spec)];
    if (receiver.fd >= 0) ::close(receiver.fd);
    receiver = {listener->second, false, {}};
    listening_.erase(listener);
    return Result::OK();
  }

  Result InitSend(const ConnectionSpec& spec, const std::string& root) override {
    socklen_t bytes = 0;
    const sockaddr_un address = address_of(root, &bytes);
    const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || ::connect(fd, reinterpret_cast<const sockaddr*>(&address), bytes) != 0) {
      return failed("connect");
    }
    const std::lock_guard lock(mutex_);
    const auto [at, fresh] = sending_.emplace(key(spec), fd);
    if (!fresh) {
      ::close(at->second);
      at->second = fd;
    }
    return Result::OK();
  }

  Result PostRecv(const ConnectionSpec& spec, uint64_t address, uint64_t bytes) override {
    const std::lock_guard lock(mutex_);
    receiving_[key(spec)].posted.push_back({0, address, bytes});
    return Result::OK();
  }

  Result PostSend(const ConnectionSpec& spec, uint64_t address, uint64_t bytes) override {
    const std::lock_guard lock(mutex_);
    const auto at = sending_.find(key(spec));
    if (at == sending_.end()) return Result(ErrorCode::kNotReady, "no connection");
    const Piece piece{::getpid(), address, bytes};
    if (::send(at->second, &piece, sizeof piece, MSG_NOSIGNAL) != sizeof piece) {
      return failed("send");
    }
    return Result::OK();
  }

  Result WaitRecv(const ConnectionSpec& spec, uint64_t timeout_ms) override {
    const std::lock_guard lock(mutex_);
    Receiver& receiver = receiving_[key(spec)];
    while (!receiver.posted.empty()) {
      pollfd ready{receiver.fd, POLLIN, 0};
      if (::poll(&ready, 1, static_cast<int>(timeout_ms)) != 1) {
        return Result(ErrorCode::kNotReady, "nothing came in time");
      }
      if (!receiver.accepted) {
        const int fd = ::accept4(receiver.fd, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd < 0) return failed("accept");
        ::close(std::exchange(receiver.fd, fd));
        receiver.accepted = true;
        continue;
      }
      Piece piece;
      if (::recv(receiver.fd, &piece, sizeof piece, 0) != sizeof piece) return failed("recv");
      const Piece into = receiver.posted.front();
      receiver.posted.pop_front();
      if (piece.bytes != into.bytes) return Result(ErrorCode::kInvalid, "another length");
      const iovec local{reinterpret_cast<void*>(into.address), into.bytes};
      const iovec remote{reinterpret_cast<void*>(piece.address), piece.bytes};
      const ssize_t got =
          ::process_vm_readv(static_cast<pid_t>(piece.pid), &local, 1, &remote, 1, 0);
      if (got != static_cast<ssize_t>(into.bytes)) return failed("process_vm_readv");
    }
    return Result::OK();
  }

  void AbortConnection(const ConnectionSpec& spec) override {
    const std::lock_guard lock(mutex_);
    if (const auto at = sending_.find(key(spec)); at != sending_.end()) {
      ::close(at->second);
      sending_.erase(at);
    }
    if (const auto at = receiving_.find(key(spec)); at != receiving_.end()) {
      ::close(at->second.fd);
      receiving_.erase(at);
    }
  }

 private:
  struct Receiver {
    int fd = -1;
    bool accepted = false;
    std::deque<Piece> posted;
  };
  static std::string key(const ConnectionSpec& spec) {
    return spec.localHost + ":" + std::to_string(spec.localPort) + ">" + spec.peerHost + ":" +
           std::to_string(spec.peerPort);
  }

  std::mutex mutex_;
  uint64_t roots_ = 0;
  std::map<std::string, int> listening_;
  std::map<std::string, int> sending_;
  std::map<std::string, Receiver> receiving_;
};

int find_engine(dl_phdr_info* info, size_t, void* out) {
  if (std::strstr(info->dlpi_name, "/_transfer_engine.") == nullptr) return 0;
  *static_cast<void**>(out) = ::dlopen(info->dlpi_name, RTLD_NOW | RTLD_NOLOAD);
  return 1;
}

}  // namespace

// datasystem::TransferEngine::TransferEngine().
extern "C" __attribute__((visibility("default"))) void construct_engine(void* self) asm(
    "_ZN10datasystem14TransferEngineC1Ev");

extern "C" void construct_engine(void* self) {
  using Constructor = void (*)(void*, std::shared_ptr<datasystem::IDataPlaneBackend>);
  void* engine = nullptr;
  ::dl_iterate_phdr(find_engine, &engine);
  const auto construct = reinterpret_cast<Constructor>(
      ::dlsym(engine, "_ZN10datasystem14TransferEngineC1ESt10shared_ptrINS_17IDataPlaneBackendEE"));
  construct(self, std::make_shared<CpuPlane>());
}
