#pragma once

#include <string>
#include <string_view>

#include <sys/types.h>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "stagelink/result.h"

// The files of a broker in the runtime folder: its socket, and beside it the lock. Whoever starts,
// ends or clears away a broker has flock(2) on the lock; a broker that lives has a record lock on
// it, which is apart from the first and goes with the process, however it ends. In the lock stand
// its pid and where its logs lie.
namespace stagelink::store::yuanrong {

// "<socket>.lock", made where there is none, for who starts a broker. Errors: connect_timeout,
// invalid_state (system).
Result<UniqueFd> lock_to_start(const std::string& socket, const Deadline& deadline);

// For the broker, for as long as it lives. Errors: not_found (it was cleared away meanwhile),
// already_exists (another one lives), invalid_state (system).
Result<UniqueFd> claim_broker_files(const std::string& socket, std::string_view logs);

// For a broker that ends: takes its files away. False: somebody is about to connect, or others
// clear away just now. True also if they are not its own any more.
bool give_up_broker_files(const std::string& socket, const UniqueFd& claimed);

// Of the broker that has claimed the files last; 0: none has.
pid_t broker_pid(const std::string& socket);

// Takes away what brokers that were killed have left in the folder: sockets, locks and logs. Asks
// the locks alone: no broker is connected to, and nothing is waited for. Returns how many went.
int remove_dead_brokers(const std::string& folder);

}  // namespace stagelink::store::yuanrong
