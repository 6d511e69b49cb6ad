#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "stagelink/result.h"

// What the halves say to each other once they have met, as JSON lines. The decode half leads:
//
//   decode                                     prefill
//   start (rank, life)                  ->     starts that rank's process
//   tell  (rank, life, message)         ->     passed on: ping, peer_gone, stop
//   kill  (rank, life)                  ->
//                                       <-     from  (rank, life, message): an event of the rank
//                                       <-     ended (rank, life, how, well)
//   report (report, exit_code)          ->     printed there too; the prefill half ends
//   pulse                               <->    once a second
//
// A rank's configuration never travels: each half has made its own from its own options.
namespace stagelink::cli::replay {

// One life of one rank's process.
struct RankLife {
  uint32_t rank = 0;
  uint32_t life = 0;
  friend auto operator<=>(const RankLife&, const RankLife&) = default;
};

nlohmann::json half_message(const char* event, RankLife life);
// Errors: corrupt (frame) for what is no message to or from one of so many ranks.
Result<RankLife> life_of(const nlohmann::json& message, uint32_t ranks);

// The message inside a `tell`, made anew from the fields that it may have. Errors: corrupt (frame).
Result<nlohmann::json> told(const nlohmann::json& message, uint32_t decode_ranks);
// The event inside a `from`, if a prefill rank may say it. Errors: corrupt (frame).
Result<nlohmann::json> said(const nlohmann::json& message);

}  // namespace stagelink::cli::replay
