#pragma once

#include <string>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "stagelink/result.h"
#include "stagelink/store_options.h"

// Finding the datasystem's client library and the broker that loads it, and starting the broker.
namespace stagelink::store::yuanrong {

struct BrokerFiles {
  std::string sdk;     // The folder yr/datasystem of the wheel.
  std::string broker;  // The executable.
  std::string plugin;  // What the broker loads.
};

// The library: sdk_path, or STAGELINK_YUANRONG_SDK, or beside this package and in the usual places
// of Python packages. The broker: STAGELINK_YUANRONG_BROKER, or beside this library or command; its
// plug-in beside it, or STAGELINK_YUANRONG_PLUGIN. Errors: not_found (the message names the command
// that installs the package); incompatible (version).
Result<BrokerFiles> find_broker_files(const YuanrongOptions& options);

// A socket that is connected to the broker of this user and worker, which is started if there is
// none. Errors: those of runtime_dir(); timed_out (connect_timeout); invalid_state (system) with
// the broker's last words.
Result<UniqueFd> connect_to_broker(const YuanrongOptions& options, const Deadline& deadline);

}  // namespace stagelink::store::yuanrong
