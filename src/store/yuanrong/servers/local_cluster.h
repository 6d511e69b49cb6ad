#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "stagelink/result.h"
#include "store/yuanrong/servers/server_process.h"

namespace stagelink::store::yuanrong {

// A worker of the Yuanrong Datasystem, and etcd, on this host: for trying out and for tests.
struct LocalClusterOptions {
  std::string folder;  // For data, logs and sockets; made, and removed by stop_cluster.
  std::string host = "127.0.0.1";
  uint16_t port = 31501;      // Of the worker.
  uint16_t etcd_port = 2379;  // And the next one, for its peers. Of the metastore too.
  uint64_t memory_mb = 1024;
  bool etcd = true;  // Otherwise the worker keeps the metadata itself (metastore).
  std::string join;  // "host:port" of the etcd or metastore of a cluster that is there.
  std::string sdk;   // The folder yr/datasystem of the wheel.
  std::vector<std::string> flags;  // More for the worker: "--name=value".
  Duration timeout = std::chrono::seconds(60);
};

// Called now and then with what is waited for.
using ClusterProgress = std::function<void(std::string_view)>;

// Starts what is asked for with fresh data (metadata of a worker that has stopped would hold the
// next one up for a minute), waits until the worker is ready, and writes folder/servers. Errors:
// already_exists (the folder is in use), not_found (etcd is not installed; the message names the
// command), timed_out and invalid_state (system) with the last lines of the log. What was started
// is stopped again.
Result<std::vector<ServerProcess>> start_cluster(const LocalClusterOptions& options,
                                                 const ClusterProgress& progress);

// Starts the worker alone, which has died, over the data in the folder.
Result<ServerProcess> start_worker_again(const LocalClusterOptions& options);

// Stops exactly the servers that folder/servers names, and removes the folder. Errors: not_found.
Status stop_cluster(const std::string& folder, Duration patience);

// Of folder/servers; empty if there is none.
std::vector<ServerProcess> read_servers(const std::string& folder);

// "/tmp/stagelink-<uid>-yuanrong-<port>".
std::string default_cluster_folder(uint16_t port);

}  // namespace stagelink::store::yuanrong
