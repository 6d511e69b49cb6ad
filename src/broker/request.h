#pragma once

#include <vector>

#include "broker/held_objects.h"
#include "broker/sdk.h"
#include "store/yuanrong/channel/protocol.h"

namespace stagelink::broker {

struct Answer {
  SdkStatus status;
  std::vector<store::yuanrong::Place> places;  // One for each key, or none.
};

// Copies the lane's request out, checks it and carries it out. A request that cannot be read is
// answered with kCodeBadRequest.
Answer carry_out(const store::yuanrong::Lane& lane, SdkClient& client, HeldObjects& held);

void write_reply(const Answer& answer, store::yuanrong::Lane& lane);

}  // namespace stagelink::broker
