#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

// What a client process and its broker share: one page of lanes (a sealed memfd that the client
// makes) and one SOCK_SEQPACKET connection, over which the worker's memory segments travel.
//
// A lane carries one request at a time. Its state word is the only one that both sides change:
//
//   kFree -> kRequested      client, after it has written the request; wakes the broker
//   kRequested -> kWorking   broker; the request is copied out first and never read again
//   kWorking -> kDone        broker, after it has written the reply; wakes the client
//   kDone -> kFree           client, after it has copied the reply out
//   kRequested, kWorking -> kAbandoned   client that does not wait any longer
//   kAbandoned -> kFree      broker, which has given back what the reply would have named
//
// Neither side believes the other: every length, place and code is checked where it is copied out.
namespace stagelink::store::yuanrong {

inline constexpr uint64_t kPageMagic = 0x31425259'4c547300;  // "\0sTLYRB1"
inline constexpr uint32_t kProtocolVersion = 1;

inline constexpr uint32_t kLanes = 64;
inline constexpr uint32_t kFastLane = 0;            // Has the exclusive connection.
inline constexpr uint32_t kMaxKeysPerRequest = 64;  // Of a batch.
inline constexpr uint32_t kMaxStoreKeyBytes = 255;  // The datasystem's own limit.
inline constexpr uint32_t kMaxMessageBytes = 1024;
inline constexpr uint64_t kMaxObjectBytes = uint64_t{128}
                                            << 20;  // Of one object of the datasystem.
// Values up to this are carried in the request; larger ones lie in the worker's memory from the
// start. Above the 500 KB below which the worker's memory is not used for puts.
inline constexpr uint32_t kInlineBytes = 512 << 10;

enum class LaneState : uint32_t { kFree, kRequested, kWorking, kDone, kAbandoned };

enum class Op : uint32_t {
  kSet = 1,  // One key and an inline value.
  kCreate,   // One key and a size; the reply names the memory.
  kPublish,  // A handle of kCreate.
  kGet,      // Keys; waits up to wait_ms for all of them.
  kErase,    // Keys.
  kExists,   // Keys.
  kExpire,   // Keys and ttl_s.
};

struct Request {
  Op op = Op::kGet;
  uint32_t keys = 0;
  uint32_t key_bytes = 0;  // Of all keys in the lane's key area, each as u16 length and bytes.
  uint32_t wait_ms = 0;
  uint32_t ttl_s = 0;       // 0: for ever.
  uint32_t write_mode = 0;  // The datasystem's number.
  uint64_t size = 0;        // kSet: of the inline value. kCreate: of the object.
  uint64_t handle = 0;      // kPublish.
};

// One answer for each key.
struct Place {
  uint64_t handle = 0;  // To be released. 0: nothing is held.
  uint64_t arena = 0;
  uint64_t offset = 0;
  uint64_t size = 0;
  uint32_t found = 0;  // kGet, kExists: 1 if the key is there.
  uint32_t reserved = 0;
};

struct Reply {
  uint32_t code = 0;  // The datasystem's; kBrokerCode... for the broker's own.
  uint32_t places = 0;
  uint32_t message_bytes = 0;
  uint32_t reserved = 0;
};

// Beside the datasystem's codes.
inline constexpr uint32_t kCodeBadRequest = 0x8000'0001;  // The broker could not read the request.
inline constexpr uint32_t kCodeNoHandles = 0x8000'0002;   // Too many objects are held.
inline constexpr uint32_t kCodeNoMemory = 0x8000'0003;    // The broker had none for a copy.
inline constexpr uint32_t kCodeStopping = 0x8000'0004;

struct Lane {
  std::atomic<uint32_t> state{0};
  uint32_t reserved = 0;
  Request request;
  Reply reply;
  alignas(64) std::array<Place, kMaxKeysPerRequest> places;
  std::array<char, kMaxMessageBytes> message;
  std::array<std::byte, kMaxKeysPerRequest*(2 + kMaxStoreKeyBytes)> keys;
  alignas(64) std::array<std::byte, kInlineBytes> value;
};

enum class Seen : uint32_t { kUnknown, kUp, kDown };
// What the broker is doing for a client that has not been welcomed yet.
enum class Step : uint32_t { kHello, kReach, kConnect, kKeys, kExclusive, kMemory, kDone };

// Written by the broker alone, from what it sees of the worker, its ring and etcd.
struct Watch {
  std::atomic<uint32_t> changes{0};      // Of anything below; bumped after it.
  std::atomic<uint32_t> worker{0};       // Seen.
  std::atomic<uint32_t> ring{0};         // Seen: kDown while another worker cannot be reached.
  std::atomic<uint32_t> coordinator{0};  // Seen: etcd or the metastore.
  std::atomic<uint32_t> memory{0};       // Seen: kDown if the worker's memory cannot be mapped.
  std::atomic<uint32_t> exclusive{0};    // Seen: kDown if lane 0 shares a connection.
  std::atomic<uint32_t> broker_pid{0};
  // How often each was lost while this client was there.
  std::atomic<uint32_t> worker_losses{0};
  std::atomic<uint32_t> ring_losses{0};
  std::atomic<uint32_t> coordinator_losses{0};
  std::atomic<uint32_t> step{0};      // Step.
  std::array<char, 200> worker_text;  // Why it is down, ended by 0.
  std::array<char, 200> ring_text;    // Which worker.
};

struct Page {
  uint64_t magic = kPageMagic;
  uint32_t version = kProtocolVersion;
  uint32_t lanes = kLanes;
  alignas(64) Watch watch;
  alignas(4096) std::array<Lane, kLanes> lane;
};
static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free);
static_assert(offsetof(Page, lane) == 4096 && sizeof(Place) == 40);

// Messages of the socket: one packet each, starting with the type.
enum class Message : uint32_t {
  kHello = 1,  // client: version, options (channel/worker_options.h); the page's memfd.
  kWelcome,    // broker: code, message. Nothing else comes before it.
  kOpenLane,   // client: u64 lane. From now on the broker serves it.
  kRelease,    // client: u64 handles, at most kMaxHandlesPerMessage.
  kArena,      // broker: u64 id, u64 bytes; the segment's memfd.
  kArenaGone,  // broker: u64 id. Views may still hold it.
};
inline constexpr uint32_t kMaxHandlesPerMessage = 64;
inline constexpr uint32_t kMaxPacketBytes = 32 << 10;

}  // namespace stagelink::store::yuanrong
