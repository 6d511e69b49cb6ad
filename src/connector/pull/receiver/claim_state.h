#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "connector/pull/receiver/sender_life.h"

namespace stagelink::pull {

// What stands behind a Claim.
//
// Thread-safety: one thread at a time.
class ClaimState {
 public:
  ClaimState(std::shared_ptr<Home> home_of, std::shared_ptr<SenderLife> life_of,
             std::shared_ptr<Line> line_of)
      : home(std::move(home_of)), life(std::move(life_of)), line(std::move(line_of)) {}
  ClaimState(const ClaimState&) = delete;
  ClaimState& operator=(const ClaimState&) = delete;
  ~ClaimState() { end(false); }

  // Tells the sender, once.
  void end(bool consumed);
  // All at once; null ones have ended already.
  static void end_all(std::span<ClaimState* const> claims, bool consumed);

  // The claim's own end or the caller's, whichever comes first.
  Status still_holds() const;

  const std::shared_ptr<Home> home;
  const std::shared_ptr<SenderLife> life;
  const std::shared_ptr<Line> line;  // Its connection is what keeps the claim.
  uint64_t id = 0;
  GrantBody body;
  uint64_t digest = 0;  // Of the key.
  Deadline until = Deadline::in(Duration::zero());

  // Of peers of 0.30: pieces are absolute addresses.
  std::string key;
  uint16_t rpc_port = 0;

 private:
  void end_omni(bool consumed);
  bool open_ = true;
};

}  // namespace stagelink::pull
