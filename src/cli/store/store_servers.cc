#include <cstdio>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <unistd.h>

#include "base/endpoint.h"
#include "base/text.h"
#include "cli/store/store_commands.h"
#include "store/yuanrong/channel/broker_process.h"
#include "store/yuanrong/servers/local_cluster.h"

namespace stagelink::cli {
namespace {

using store::yuanrong::LocalClusterOptions;
using store::yuanrong::ServerProcess;

constexpr auto kDownPatience = std::chrono::seconds(60);

constexpr uint64_t kLeastMemory = uint64_t{64} << 20;

constexpr const char* kServerExamples =
    "Examples:\n"
    "  stagelink store up --backend yuanrong             etcd and a worker on 127.0.0.1:31501\n"
    "  stagelink store up --backend yuanrong --no-etcd   the worker keeps the metadata itself\n"
    "  stagelink store down --backend yuanrong           stops what `up` has started, nothing "
    "else\n"
    "The servers are for trying out: data is gone with them. Exit codes: 0 done, 1 failed, 2 wrong "
    "usage.\n";

struct ServerArguments {
  std::string backend;
  std::string worker = "127.0.0.1:31501";
  std::string memory = "1GiB";
  std::string timeout = "60s";
  std::string sdk;
  LocalClusterOptions cluster;
  bool no_etcd = false;
};

// Progress on a terminal; a log of a build gets only the outcome.
void show_progress(std::string_view text) {
  if (::isatty(STDERR_FILENO) != 1) return;
  std::fprintf(stderr, "\r\x1b[K%.*s", static_cast<int>(text.size()), text.data());
  std::fflush(stderr);
}

Status check_backend(const ServerArguments& arguments) {
  if (arguments.backend == "yuanrong") return {};
  return Status(Reason::kInvalidArgument,
                fmt::format("--backend: \"{}\" has no servers; yuanrong has", arguments.backend));
}

Status complete(ServerArguments& arguments) {
  SL_TRY(check_backend(arguments));
  SL_ASSIGN(const Endpoint worker, parse_endpoint(arguments.worker));
  SL_ASSIGN(const uint64_t bytes, parse_bytes(arguments.memory));
  SL_ASSIGN(arguments.cluster.timeout, parse_duration(arguments.timeout));
  arguments.cluster.host = worker.host;
  arguments.cluster.port = worker.port;
  if (bytes < kLeastMemory) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("--memory: {} is {} bytes; a worker needs 64MiB at least",
                              arguments.memory, bytes));
  }
  arguments.cluster.memory_mb = bytes >> 20;
  arguments.cluster.etcd = !arguments.no_etcd;
  if (arguments.cluster.folder.empty()) {
    arguments.cluster.folder = store::yuanrong::default_cluster_folder(worker.port);
  }
  return {};
}

int run_up(ServerArguments& arguments) {
  if (Status status = complete(arguments); !status.ok()) return store_failure(status);
  YuanrongOptions options;
  options.sdk_path = arguments.sdk;
  auto files = store::yuanrong::find_broker_files(options);
  if (!files.ok()) return store_failure(files.status());
  arguments.cluster.sdk = files->sdk;
  auto servers = store::yuanrong::start_cluster(arguments.cluster, show_progress);
  show_progress("");
  if (!servers.ok()) return store_failure(servers.status());
  for (const ServerProcess& server : *servers) {
    fmt::print("{:<8} pid {:<8} {}\n", server.name, server.id.pid,
               server.name == "worker"
                   ? arguments.worker
                   : fmt::format("{}:{}", arguments.cluster.host, arguments.cluster.etcd_port));
  }
  fmt::print("logs and data: {}\nstop with: stagelink store down --backend yuanrong --worker {}\n",
             arguments.cluster.folder, arguments.worker);
  return kExitOk;
}

int run_down(ServerArguments& arguments) {
  if (Status status = complete(arguments); !status.ok()) return store_failure(status);
  const auto servers = store::yuanrong::read_servers(arguments.cluster.folder);
  const Status status = store::yuanrong::stop_cluster(arguments.cluster.folder, kDownPatience);
  if (!status.ok()) return store_failure(status);
  for (const ServerProcess& server : servers) {
    fmt::print("{:<8} pid {:<8} stopped\n", server.name, server.id.pid);
  }
  return kExitOk;
}

CLI::App* add_server_command(CLI::App& store, const char* name, const char* text,
                             ServerArguments& arguments) {
  CLI::App* const command = store.add_subcommand(name, text);
  command->add_option("--backend", arguments.backend, "yuanrong")->required();
  command->add_option("--worker", arguments.worker, "Where the worker listens")
      ->capture_default_str();
  command->add_option("--dir", arguments.cluster.folder,
                      "For data and logs; default: /tmp/stagelink-UID-yuanrong-PORT");
  command->footer(kServerExamples);
  return command;
}

}  // namespace

void add_store_up(CLI::App& store, int& exit_code) {
  auto arguments = std::make_shared<ServerArguments>();
  CLI::App* const command =
      add_server_command(store, "up", "Start a store's servers on this host", *arguments);
  command->add_option("--memory", arguments->memory, "For objects")->capture_default_str();
  command->add_option("--etcd-port", arguments->cluster.etcd_port, "Of etcd, or of the metastore")
      ->capture_default_str();
  command->add_flag("--no-etcd", arguments->no_etcd, "The worker keeps the metadata itself");
  command->add_option("--join", arguments->cluster.join,
                      "host:port of a cluster's etcd (with --no-etcd: metastore)");
  command->add_option("--timeout", arguments->timeout, "For all to be ready")
      ->capture_default_str();
  command->add_option("--sdk-path", arguments->sdk, "The folder yr/datasystem of the wheel");
  command->add_option("--worker-flag", arguments->cluster.flags, "--name=value for the worker")
      ->take_all();
  command->callback([arguments, &exit_code] { exit_code = run_up(*arguments); });
}

void add_store_down(CLI::App& store, int& exit_code) {
  auto arguments = std::make_shared<ServerArguments>();
  CLI::App* const command = add_server_command(
      store, "down", "Stop the servers that `stagelink store up` has started", *arguments);
  command->callback([arguments, &exit_code] { exit_code = run_down(*arguments); });
}

}  // namespace stagelink::cli
