#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/endpoint.h"
#include "cli/doctor/finding.h"
#include "connector/pull/options.h"
#include "stagelink/engine_options.h"
#include "stagelink/result.h"

namespace stagelink::cli::doctor {

// A place where a process of the configuration will listen.
struct ListenPlace {
  std::string who;        // "option bind", "edge 0->1 (NixlConnector), kv_transfer, ..."
  std::string host;       // As configured: an address, a name, a wildcard, auto.
  std::string interface;  // Whose address `auto` takes.
  std::string advertise;  // What peers are told, host or host:port; empty: where it listens.
  uint16_t port = 0;      // 0: any free one.
};

// What is expected to answer.
enum class Speaks : uint8_t { kAnything, kZmq, kOther };
struct PeerPlace {
  std::string who;  // "--peer", or the key of the configuration.
  Endpoint endpoint;
  Speaks speaks = Speaks::kAnything;
  bool secret = false;                         // This side will show one.
  std::optional<pull::PullOptions> pull = {};  // A receiver pulls from there with these.
};

// Memory that a process of the configuration will take.
struct MemoryNeed {
  std::string who;
  uint64_t bytes = 0;
  std::string file;  // Where it lies in shared memory; empty: a memfd.
};

// What a configuration asks of this machine and of others.
struct Subject {
  std::string name = "this machine";
  EngineOptions engine;
  std::vector<ListenPlace> listens;
  std::vector<PeerPlace> peers;
  std::vector<MemoryNeed> memory;
  std::vector<std::string> ascend;  // Edges over the device network of NPUs.
  std::vector<Finding> findings;    // What was asked for and is not in it.
};

struct SubjectRequest {
  std::string file;      // Of an engine or of a pipeline; empty: what is in force without one.
  std::string platform;  // Of a pipeline.
  std::string stage;     // Of a pipeline: only what this stage does; empty: all stages.
  std::optional<int64_t> rank;
  std::vector<std::string> options;  // "name=value" of the engine.
  std::vector<std::string> peers;    // "host:port".
};

// Errors: what is wrong with the file, the options, the addresses or the stage.
Result<Subject> load_subject(const SubjectRequest& request);

}  // namespace stagelink::cli::doctor
