#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "connector/moriio/move/flight.h"
#include "connector/moriio/writer/writer.h"

namespace stagelink::moriio {

// What the writer's thread knows of one transfer.
struct Writer::Transfer {
  explicit Transfer(std::string id) : transfer_id(std::move(id)) {}

  const std::string transfer_id;
  WriteState state = WriteState::kWaitingBlocks;
  Deadline deadline = Deadline::in(Deadline::kLongest);
  std::shared_ptr<const Allocation> allocation;
  std::optional<Endpoint> consumer;
  std::vector<WriteTask> pending;  // Not planned yet.
  size_t synchronized = 0;         // Of pending, from the front.
  Flight flight{MoveDirection::kWrite};
  bool sealed = false;
  std::optional<Status> told;  // The outcome of write_done.
  // Why it is to end, and as what; set again and again until nothing is on its way any more.
  std::optional<Status> ending;
  WriteState ending_as = WriteState::kAborted;
  Deadline::Clock::time_point timer{};
};

// What callers may ask of a transfer that has not ended.
struct Writer::Scheduled {
  std::unordered_set<std::string> layers;
  WriteState state = WriteState::kWaitingBlocks;
  bool sealed = false;
};

struct Writer::Item {
  enum class Kind : uint8_t { kTask, kSeal, kBlocks, kStop, kTold };
  Kind kind;
  std::string transfer_id;
  WriteTask task;
  Status status;  // Of kStop: why; of kTold: the outcome.
};

}  // namespace stagelink::moriio
