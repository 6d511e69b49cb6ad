#include <algorithm>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/commands.h"
#include "connector/encoder_cache/registry/registry_server.h"

namespace stagelink::cli {
namespace {

using encoder_cache::RegistryOptions;
using encoder_cache::RegistryServer;

constexpr const char* kRegistryExamples =
    "Examples:\n"
    "  stagelink registry                                       on 127.0.0.1:9018\n"
    "  stagelink registry --host 10.0.0.5 --secret-file FILE    for other hosts that have the "
    "file\n"
    "  curl http://127.0.0.1:9018/healthz\n"
    "  curl http://127.0.0.1:9018/metrics\n"
    "It runs until SIGTERM or SIGINT and keeps nothing on disk. Exit codes: 0 ended, 1 it could "
    "not\n"
    "listen, 2 wrong usage.\n";

// Files besides the connections.
constexpr rlim_t kOtherFiles = 64;

struct RegistryArguments {
  RegistryOptions options;
  std::string max_bytes = "128MiB";
  bool json = false;
};

int registry_failure(const Status& status) {
  std::fprintf(stderr, "error: %s\n", status.to_string().c_str());
  return status.code() == Code::kInvalidArgument ? kExitUsage : kExitFailed;
}

// Each connection is a file, and the usual limit is 1024.
void raise_file_limit(uint32_t connections) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = connections + kOtherFiles;
  if (limit.rlim_cur >= wanted) return;
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  if (limit.rlim_cur > before) ::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= wanted) return;
  std::fprintf(stderr, "warning: %s\n",
               fmt::format("this process may have {} open files, fewer than --max-connections {} "
                           "needs: raise ulimit -n",
                           limit.rlim_cur, connections)
                   .c_str());
}

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

int run_registry(RegistryArguments& arguments) {
  auto bytes = parse_bytes(arguments.max_bytes);
  if (!bytes.ok()) {
    std::fprintf(stderr, "error: --max-bytes: %s\n", bytes.status().to_string().c_str());
    return kExitUsage;
  }
  arguments.options.table.max_bytes = *bytes;
  arguments.options.names = {"--host", "--port", "--secret-file", "--max-bytes"};
  raise_file_limit(arguments.options.max_connections);
  // Before there are threads, so that none of them is interrupted and this one waits for them.
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  auto server = RegistryServer::start(arguments.options);
  if (!server.ok()) return registry_failure(server.status());
  const std::string url = "http://" + (*server)->endpoint().to_string();
  if (arguments.json) {
    say(fmt::format("{{\"url\":\"{}\",\"instance\":\"{}\",\"pid\":{}}}", url,
                    (*server)->instance().to_string(), ::getpid()));
  } else {
    say("EC Mooncake registry listening on " + url);
  }
  int signal = 0;
  while (::sigwait(&ends, &signal) != 0) continue;
  (*server)->close();
  if (!arguments.json) say("EC Mooncake registry stopped.");
  return kExitOk;
}

}  // namespace

void add_registry_command(CLI::App& app, int& exit_code) {
  CLI::App* const command =
      app.add_subcommand("registry", "Serve the encoder cache's registry over HTTP");
  const auto arguments = std::make_shared<RegistryArguments>();
  RegistryOptions& options = arguments->options;
  command->add_option("--host", options.host, "Where to listen; all addresses only if told so")
      ->capture_default_str();
  command->add_option("--port", options.port, "0: any free one")
      ->capture_default_str()
      ->check(CLI::Range(0, 65'535));
  command->add_option("--secret-file", options.secret_file,
                      "Whose bytes a client must hold: 32 B to 4 KiB, mode 0600");
  command->add_option("--max-entries", options.table.max_entries, "Of all producers together")
      ->capture_default_str()
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 32));
  command->add_option("--max-bytes", arguments->max_bytes, "Memory of the table")
      ->capture_default_str();
  command->add_option("--max-producers", options.table.max_producers, "Of one hash")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  command->add_option("--max-connections", options.max_connections, "Open at a time")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  command->add_flag("--json", arguments->json, "Say where it listens in JSON");
  command->footer(kRegistryExamples);
  command->callback([arguments, &exit_code] { exit_code = run_registry(*arguments); });
}

}  // namespace stagelink::cli
