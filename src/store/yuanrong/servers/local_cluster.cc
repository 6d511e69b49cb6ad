#include "store/yuanrong/servers/local_cluster.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/endpoint.h"
#include "base/unique_fd.h"

namespace stagelink::store::yuanrong {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr auto kReadyInterval = 50ms;
constexpr auto kTellInterval = 1s;
constexpr auto kStopPatience = 20s;
constexpr size_t kLogLines = 5;

// In PATH, or empty.
std::string find_program(const std::string& name) {
  const char* const variable = std::getenv("PATH");
  const std::string paths = variable == nullptr ? "/usr/bin:/bin" : variable;
  for (size_t at = 0; at <= paths.size();) {
    const size_t end = std::min(paths.find(':', at), paths.size());
    const std::string path = paths.substr(at, end - at) + "/" + name;
    if (::access(path.c_str(), X_OK) == 0) return path;
    at = end + 1;
  }
  return "";
}

bool port_answers(const std::string& host, uint16_t port) {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (::inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) return false;
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

// The folder is this user's alone; /tmp is everybody's.
Status make_folder(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0700) == 0) return {};
  struct stat info {};
  if (errno == EEXIST && ::lstat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) &&
      info.st_uid == ::geteuid()) {
    for (const ServerProcess& server : read_servers(folder)) {
      if (!server.alive()) continue;
      return Status(
          Reason::kAlreadyExists,
          fmt::format("{}: {} runs there already (pid {}); stop it with `stagelink store down`",
                      folder, server.name, server.id.pid));
    }
    std::error_code error;
    fs::remove_all(folder, error);  // Of servers that have ended.
    if (::mkdir(folder.c_str(), 0700) == 0) return {};
  }
  return Status(Reason::kPermission, fmt::format("{}: {}", folder, std::strerror(errno)));
}

Status write_servers(const std::string& folder, const std::vector<ServerProcess>& servers) {
  const std::string path = folder + "/servers";
  std::ofstream file(path);
  for (const ServerProcess& server : servers) file << server.line() << '\n';
  if (file.flush()) return {};
  return Status(Reason::kSystem, path + ": cannot be written");
}

ServerCommand etcd_command(const LocalClusterOptions& options, const std::string& program) {
  const auto url = [&](int add) {
    return fmt::format("http://{}:{}", options.host, options.etcd_port + add);
  };
  const std::string data = options.folder + "/etcd";
  ServerCommand command;
  command.name = "etcd";
  command.output = options.folder + "/etcd.log";
  command.words = {program,
                   "--name",
                   "stagelink",
                   "--data-dir",
                   data,
                   "--listen-client-urls",
                   url(0),
                   "--advertise-client-urls",
                   url(0),
                   "--listen-peer-urls",
                   url(1),
                   "--initial-advertise-peer-urls",
                   url(1),
                   "--initial-cluster",
                   "stagelink=" + url(1)};
  return command;
}

ServerCommand worker_command(const LocalClusterOptions& options) {
  const std::string& at = options.folder;
  const std::string own = fmt::format("{}:{}", options.host, options.etcd_port);
  ServerCommand command;
  command.name = "worker";
  command.output = at + "/worker.out";
  command.environment = {"LD_LIBRARY_PATH=" + options.sdk + "/lib"};
  command.words = {options.sdk + "/datasystem_worker",
                   fmt::format("--worker_address={}:{}", options.host, options.port),
                   fmt::format("--shared_memory_size_mb={}", options.memory_mb),
                   "--unix_domain_socket_dir=" + at + "/uds",
                   "--rocksdb_store_dir=" + at + "/rocksdb", "--log_dir=" + at + "/logs",
                   "--health_check_path=" + at + "/healthy", "--ready_check_path=" + at + "/ready",
                   // By default it writes some hundred megabytes an hour.
                   "--minloglevel=2", "--log_monitor=false",
                   // Of a client or worker that is gone; the defaults are minutes.
                   "--client_dead_timeout_s=10", "--node_timeout_s=3", "--node_dead_timeout_s=6",
                   "--heartbeat_interval_ms=500"};
  const std::string& metadata = options.join.empty() ? own : options.join;
  if (options.etcd) {
    command.words.push_back("--etcd_address=" + metadata);
  } else {
    command.words.push_back("--metastore_address=" + metadata);
    if (options.join.empty()) command.words.emplace_back("--start_metastore_service=true");
  }
  command.words.insert(command.words.end(), options.flags.begin(), options.flags.end());
  return command;
}

// Asks `ready` again and again.
Status wait_until(const ServerProcess& server, const std::string& log, const Deadline& deadline,
                  const ClusterProgress& progress, const std::function<bool()>& ready) {
  auto told = Deadline::Clock::now();
  const auto begin = told;
  while (!ready()) {
    if (!server.alive()) {
      return Status(Reason::kSystem,
                    fmt::format("{} has ended: {}", server.name, last_lines(log, kLogLines)));
    }
    if (deadline.passed()) {
      return Status(Reason::kTimedOut, fmt::format("{} is not ready in time: {}", server.name,
                                                   last_lines(log, kLogLines)));
    }
    const auto now = Deadline::Clock::now();
    if (progress && now - told >= kTellInterval) {
      told = now;
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - begin).count();
      progress(fmt::format("waiting for {}: {} s", server.name, seconds));
    }
    std::this_thread::sleep_for(kReadyInterval);
  }
  return {};
}

Status check_free(const LocalClusterOptions& options) {
  std::vector<uint16_t> ports = {options.port};
  if (options.join.empty()) ports.push_back(options.etcd_port);
  for (const uint16_t port : ports) {
    if (!port_answers(options.host, port)) continue;
    return Status(Reason::kPortInUse,
                  fmt::format("{}:{}: somebody listens there already; `ss -ltnp` names who",
                              options.host, port));
  }
  return {};
}

Status start_etcd(const LocalClusterOptions& options, const Deadline& deadline,
                  const ClusterProgress& progress, std::vector<ServerProcess>& servers) {
  const std::string program = find_program("etcd");
  if (program.empty()) {
    return Status(
        Reason::kNotFound,
        "etcd is not installed: apt-get install etcd-server, or do without it (--no-etcd)");
  }
  const ServerCommand command = etcd_command(options, program);
  SL_ASSIGN(const ServerProcess etcd, start_server(command));
  servers.push_back(etcd);
  SL_TRY(write_servers(options.folder, servers));
  return wait_until(etcd, command.output, deadline, progress,
                    [&] { return port_answers(options.host, options.etcd_port); });
}

Status start_worker(const LocalClusterOptions& options, const Deadline& deadline,
                    const ClusterProgress& progress, std::vector<ServerProcess>& servers) {
  const ServerCommand command = worker_command(options);
  SL_ASSIGN(const ServerProcess worker, start_server(command));
  servers.push_back(worker);
  SL_TRY(write_servers(options.folder, servers));
  return wait_until(worker, command.output, deadline, progress,
                    [&] { return ::access((options.folder + "/ready").c_str(), F_OK) == 0; });
}

}  // namespace

Result<std::vector<ServerProcess>> start_cluster(const LocalClusterOptions& options,
                                                 const ClusterProgress& progress) {
  SL_TRY(make_folder(options.folder));
  if (Status busy = check_free(options); !busy.ok()) {
    std::error_code error;
    fs::remove_all(options.folder, error);
    return busy;
  }
  const Deadline deadline = Deadline::in(options.timeout);
  std::vector<ServerProcess> servers;
  Status status;
  if (options.etcd && options.join.empty()) {
    status = start_etcd(options, deadline, progress, servers);
  }
  if (status.ok()) status = start_worker(options, deadline, progress, servers);
  if (status.ok()) return servers;
  (void)stop_cluster(options.folder, kStopPatience);
  return status;
}

Result<ServerProcess> start_worker_again(const LocalClusterOptions& options) {
  std::vector<ServerProcess> servers = read_servers(options.folder);
  std::erase_if(servers, [](const ServerProcess& server) { return !server.alive(); });
  SL_TRY(start_worker(options, Deadline::in(options.timeout), nullptr, servers));
  return servers.back();
}

// The worker first: it says goodbye to etcd.
Status stop_cluster(const std::string& folder, Duration patience) {
  std::vector<ServerProcess> servers = read_servers(folder);
  if (servers.empty()) {
    return Status(Reason::kNotFound, folder + ": no servers were started there");
  }
  Status status;
  for (auto server = servers.rbegin(); server != servers.rend(); ++server) {
    if (Status stopped = stop_server(*server, patience); !stopped.ok()) status = std::move(stopped);
  }
  if (!status.ok()) return status;
  std::error_code error;
  fs::remove_all(folder, error);
  return {};
}

std::vector<ServerProcess> read_servers(const std::string& folder) {
  std::vector<ServerProcess> servers;
  std::ifstream file(folder + "/servers");
  for (std::string line; std::getline(file, line);) {
    if (auto server = ServerProcess::parse(line)) servers.push_back(*std::move(server));
  }
  return servers;
}

std::string default_cluster_folder(uint16_t port) {
  return fmt::format("/tmp/stagelink-{}-yuanrong-{}", ::geteuid(), port);
}

}  // namespace stagelink::store::yuanrong
