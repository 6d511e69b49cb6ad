#include "cli/bench/suite/groups.h"

#include <array>

namespace stagelink::cli::bench {

namespace {

constexpr std::array kEngineGroups = {
    Group{"copy", run_copy_group},         Group{"peers", run_peer_group},
    Group{"layers", run_layers_group},     Group{"submit", run_submit_group},
    Group{"small", run_small_group},       Group{"notify", run_notify_group},
    Group{"hot-path", run_hot_path_group}, Group{"first", run_first_group},
    Group{"register", run_register_group}, Group{"replay", run_replay_group},
};

}  // namespace

std::span<const Group> engine_groups() noexcept { return kEngineGroups; }

}  // namespace stagelink::cli::bench
