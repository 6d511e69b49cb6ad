#include "store/yuanrong/channel/broker_process.h"

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sodium.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/endpoint.h"
#include "base/runtime_dir.h"
#include "base/text.h"
#include "store/yuanrong/channel/broker_lock.h"

extern char** environ;

namespace stagelink::store::yuanrong {
namespace {

using namespace std::chrono_literals;

constexpr int kBacklog = 128;
constexpr int kOutOfTheWay = 20;  // Of the numbers that the broker expects.

Status socket_trouble(const char* what, const std::string& path) {
  return Status(Reason::kSystem, fmt::format("{} {}: {}", what, path, std::strerror(errno)));
}

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return Status(Reason::kInvalidArgument, fmt::format("{}: too long for a socket", path));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

Result<UniqueFd> make_socket() {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) return socket_trouble("socket for", "the broker");
  return socket;
}

// Empty: nobody listens there.
Result<UniqueFd> try_connect(const std::string& path, const Deadline& deadline) {
  SL_ASSIGN(const sockaddr_un address, address_of(path));
  SL_ASSIGN(UniqueFd socket, make_socket());
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(deadline.left()).count();
  // A broker that does not accept, or does not read what it is sent, must not hold us for ever.
  const timeval patience{seconds < 1 ? 1 : seconds, 0};
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  for (;;) {
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) ==
        0) {
      break;
    }
    if (errno == EINTR) continue;
    if (errno == ENOENT || errno == ECONNREFUSED) return UniqueFd();
    if (errno == EAGAIN) {
      return Status(Reason::kConnectTimeout,
                    fmt::format("{}: the broker, pid {}, lets nobody in: it is stopped, or hangs",
                                path, broker_pid(path)));
    }
    return socket_trouble("connect to", path);
  }
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
      peer.uid != ::geteuid()) {
    return Status(Reason::kOtherUser, fmt::format("{}: belongs to uid {}", path, peer.uid));
  }
  return socket;
}

// Bound under a name of its own first, so that the one that others connect to always listens.
Result<UniqueFd> listen_at(const std::string& path) {
  const std::string early = path + ".new";
  SL_ASSIGN(const sockaddr_un address, address_of(early));
  SL_ASSIGN(const UniqueFd socket, make_socket());
  ::unlink(early.c_str());
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return socket_trouble("bind", early);
  }
  if (::listen(socket.get(), kBacklog) != 0) return socket_trouble("listen at", early);
  const int flags = ::fcntl(socket.get(), F_GETFL);
  (void)::fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK);
  if (::rename(early.c_str(), path.c_str()) != 0) return socket_trouble("rename to", path);
  UniqueFd high(::fcntl(socket.get(), F_DUPFD_CLOEXEC, kOutOfTheWay));
  if (!high) return socket_trouble("fcntl of", path);
  return high;
}

// What the broker may see of the environment: no secrets of its starter.
std::vector<char*> broker_environment() {
  constexpr std::array<std::string_view, 10> kPassed = {
      "PATH=",   "HOME=",       "LANG=",         "LC_ALL=",       "TZ=",
      "TMPDIR=", "DATASYSTEM_", "ASAN_OPTIONS=", "TSAN_OPTIONS=", "STAGELINK_LOG_LEVEL="};
  std::vector<char*> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    for (const std::string_view name : kPassed) {
      if (text.substr(0, name.size()) == name) out.push_back(*entry);
    }
  }
  out.push_back(nullptr);
  return out;
}

// Only says that it could be started.
Status spawn(const BrokerFiles& files, const std::string& path, int listener, int last_words) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_adddup2(&actions, listener, 3);
  ::posix_spawn_file_actions_adddup2(&actions, last_words, 4);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, 5);
  sigset_t none;
  sigset_t all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::array<std::string, 4> words = {files.broker, path, files.sdk, files.plugin};
  std::array<char*, 5> argv = {words[0].data(), words[1].data(), words[2].data(), words[3].data(),
                               nullptr};
  std::vector<char*> environment = broker_environment();
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, files.broker.c_str(), &actions, &attributes, argv.data(),
                                  environment.data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return Status(Reason::kSystem,
                  fmt::format("starting {}: {}", files.broker, std::strerror(error)));
  }
  // It becomes nobody's child at once, and this first life ends.
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return {};
}

// "ready", or why not.
Status read_last_words(int pipe, const std::string& broker, const Deadline& deadline) {
  std::string words;
  for (;;) {
    pollfd wanted{pipe, POLLIN, 0};
    const int got = ::poll(&wanted, 1, deadline.left_ms());
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) {
      return Status(Reason::kConnectTimeout, fmt::format("{}: has not started in time", broker));
    }
    std::array<char, 1024> bytes{};
    const ssize_t count = ::read(pipe, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count > 0 && words.size() < 4096) words.append(bytes.data(), static_cast<size_t>(count));
    if (words == "ready") return {};
    if (count <= 0) break;
  }
  return Status(Reason::kSystem, fmt::format("{} could not start: {}", broker,
                                             words.empty() ? "it ended without a word"
                                                           : to_plain_text(words, 1000)));
}

Status start_broker(const BrokerFiles& files, const std::string& path, const Deadline& deadline) {
  SL_ASSIGN(const UniqueFd listener, listen_at(path));
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return socket_trouble("pipe for", files.broker);
  const UniqueFd hears(ends[0]);
  UniqueFd low(ends[1]);
  UniqueFd says(::fcntl(low.get(), F_DUPFD_CLOEXEC, kOutOfTheWay));
  low.reset();
  Status status = spawn(files, path, listener.get(), says.get());
  says.reset();
  if (status.ok()) status = read_last_words(hears.get(), files.broker, deadline);
  if (!status.ok()) ::unlink(path.c_str());
  return status;
}

// One broker for a worker, its ring and a library.
std::string socket_name(const YuanrongOptions& options, const BrokerFiles& files) {
  const std::string all =
      fmt::format("{}\n{}\n{}\n{}\n{}\n{}", Endpoint{options.host, options.port}.to_string(),
                  files.sdk, files.plugin, files.broker, options.etcd_address, options.ring);
  std::array<unsigned char, 16> sum{};
  crypto_generichash(sum.data(), sum.size(), reinterpret_cast<const unsigned char*>(all.data()),
                     all.size(), nullptr, 0);
  std::string name = "yuanrong-";
  for (size_t i = 0; i < 6; ++i) name += fmt::format("{:02x}", sum[i]);
  return name;
}

}  // namespace

Result<UniqueFd> connect_to_broker(const YuanrongOptions& options, const Deadline& deadline) {
  SL_ASSIGN(const BrokerFiles files, find_broker_files(options));
  SL_ASSIGN(const std::string folder, runtime_dir(""));
  const std::string path = folder + "/" + socket_name(options, files);
  SL_ASSIGN(UniqueFd there, try_connect(path, deadline));
  if (there) return there;
  SL_ASSIGN(const UniqueFd lock, lock_to_start(path, deadline));
  SL_ASSIGN(there, try_connect(path, deadline));  // Another was faster.
  if (there) return there;
  (void)remove_dead_brokers(folder);
  SL_TRY(start_broker(files, path, deadline));
  SL_ASSIGN(there, try_connect(path, deadline));
  if (there) return there;
  return Status(Reason::kPeerLost, "the broker has ended right after its start");
}

}  // namespace stagelink::store::yuanrong
