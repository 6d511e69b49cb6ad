#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "base/process_id.h"
#include "stagelink/result.h"

namespace stagelink::store::yuanrong {

// A server that runs on after this process: who it is, by pid and start time, so that nothing else
// is ever signalled under its number.
struct ServerProcess {
  std::string name;
  ProcessId id;

  bool alive() const noexcept;
  // "name pid start_time", and back.
  std::string line() const;
  static std::optional<ServerProcess> parse(std::string_view line);
};

struct ServerCommand {
  std::string name;
  std::vector<std::string> words;        // The program by its path, and its arguments.
  std::vector<std::string> environment;  // Beside this process's own.
  std::string output;                    // A file for what it prints.
};

// As nobody's child, in a session of its own. Errors: not_found, invalid_state (system).
Result<ServerProcess> start_server(const ServerCommand& command);
// SIGTERM, and SIGKILL when `patience` is over. Ok also if it has ended already.
Status stop_server(const ServerProcess& server, Duration patience);
// The last lines of a file, for messages.
std::string last_lines(const std::string& path, size_t count);

}  // namespace stagelink::store::yuanrong
