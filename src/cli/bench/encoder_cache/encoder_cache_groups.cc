#include "cli/bench/encoder_cache/encoder_cache_groups.h"

#include <array>

namespace stagelink::cli::bench {

namespace {

constexpr std::array kEncoderCacheGroups = {
    Group{"embedding", run_embedding_group},
    Group{"registry", run_registry_group},
    Group{"waiters", run_waiters_group},
};

}  // namespace

std::span<const Group> encoder_cache_groups() noexcept { return kEncoderCacheGroups; }

}  // namespace stagelink::cli::bench
