#include "cli/replay/run_record.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace stagelink::cli::replay {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxFailures = 20;  // Lines for people; the counts are complete.

}  // namespace

bool RunRecord::take(const Json& event) {
  const auto kind = event.at("event").get<std::string>();
  if (kind == "error") {
    errors[event.at("cause").get<std::string>()] += event.at("count").get<uint64_t>();
    return true;
  }
  if (kind != "transfer" && kind != "wrong" && kind != "done" && kind != "lost") return false;
  const auto index = event.at("request").get<uint32_t>();
  RequestRecord& request = requests.at(index);
  if (kind == "transfer") {
    transfers.push_back({index, event.at("bytes").get<uint64_t>(),
                         event.at("start_ns").get<int64_t>(), event.at("ns").get<int64_t>()});
  } else if (kind == "wrong") {
    if (failures.size() < kMaxFailures) {
      failures.push_back(fmt::format("request {}: {} blocks with wrong bytes, the first at {}",
                                     index, event.at("blocks").get<uint64_t>(),
                                     event.at("first").get<std::string>()));
    }
  } else if (kind == "lost") {
    request.state = RequestRecord::State::kLost;
    if (failures.size() < kMaxFailures) {
      failures.push_back(
          fmt::format("request {} was lost: {}", index, event.at("cause").get<std::string>()));
    }
  } else {
    request.state = RequestRecord::State::kDone;
    request.blocks = event.at("blocks").get<uint64_t>();
    request.hit_blocks = event.at("hit_blocks").get<uint64_t>();
    request.verified_blocks = event.at("verified_blocks").get<uint64_t>();
    request.wrong_blocks = event.at("wrong_blocks").get<uint64_t>();
    request.limit_ns = event.at("limit_ns").get<int64_t>();
    request.total_ns = event.at("total_ns").get<int64_t>();
  }
  return true;
}

uint32_t RunRecord::count(RequestRecord::State state) const {
  return static_cast<uint32_t>(std::ranges::count(requests, state, &RequestRecord::state));
}

}  // namespace stagelink::cli::replay
