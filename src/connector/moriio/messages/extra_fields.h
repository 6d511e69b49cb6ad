#pragma once

#include "connector/moriio/messages/message_fields.h"
#include "connector/moriio/messages/packed_map.h"

namespace stagelink::moriio {

// The extra keys count only beside `version`: without it the peer is not one of ours, and what it
// means by such a key is its own.
MessageExtras read_extras(MapReader& map);
// Nothing if no field is set; else a version that is not set is kMessageVersion.
void write_extras(MapWriter& map, const MessageExtras& extras);

}  // namespace stagelink::moriio
