#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "base/deadline.h"
#include "engine/link/peer_state.h"
#include "stagelink/result.h"

// The connecting side. All of it waits, with a deadline, on the caller's thread.
namespace stagelink::engine {

// From another engine's descriptor, or from the address of its listener.
Result<std::shared_ptr<PeerState>> dial_descriptor(const std::shared_ptr<EngineCore>& core,
                                                   std::span<const std::byte> descriptor,
                                                   const Deadline& deadline);
Result<std::shared_ptr<PeerState>> dial_address(const std::shared_ptr<EngineCore>& core,
                                                std::string_view host_port,
                                                const Deadline& deadline);

// A data connection to a peer that is already connected.
Result<std::shared_ptr<transport::PostedTransport>> dial_stream(
    const std::shared_ptr<PeerState>& peer, const Deadline& deadline);

}  // namespace stagelink::engine
