#include "cli/replay/rank/arrival.h"

#include "cli/replay/rank/checksum.h"
#include "cli/replay/workload/block_content.h"

namespace stagelink::cli::replay {

ArrivalReport check_arrived(const RankConfig& config, std::span<const std::byte> pool,
                            std::span<const ArrivedBlock> blocks) {
  ArrivalReport report;
  // Block by block, so that the second look at a block finds it in the cache.
  for (const ArrivedBlock& arrived : blocks) {
    if (config.checksum && block_checksum(config.layout, pool, arrived.block) != arrived.checksum) {
      report.bad_checksums.push_back(arrived.position);
      continue;
    }
    const bool compare = config.verify == Verify::kFull ||
                         (config.verify == Verify::kSample && arrived.position % kSampleEvery == 0);
    if (!compare) continue;
    const auto wrong = check_block(config.layout, pool, arrived.key, arrived.block);
    if (!wrong) {
      ++report.verified;
      continue;
    }
    if (report.wrong.empty()) report.first_wrong = wrong->to_string(arrived.key);
    report.wrong.push_back(arrived.position);
  }
  return report;
}

}  // namespace stagelink::cli::replay
