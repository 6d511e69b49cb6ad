#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "connector/kv/layer_cache.h"
#include "connector/kv/payload_plan.h"
#include "connector/pull/pull_connector.h"
#include "stagelink/result.h"

namespace stagelink::kv {

// A KV cache whose memory is registered with a connector. Payloads of its blocks are offered where
// they lie: only what belongs to no tensor, the header and the padding, is copied to the pool.
// Whoever reads a payload reads the blocks, so that they must stay as they are until its ticket is
// told to be free: its readers are done, or its time is over and nobody reads it.
//
// Thread-safety: all methods may run at the same time. The connector must outlive it, the cache
// close().
class RegisteredCache {
 public:
  // Registers what the tensors lie in, read-only. Errors: unsupported (`protocol: shm`, which only
  // reads memory that it can map, `ascend`, and `compat_030`); limit (too_many_regions); those of
  // PullConnector::register_memory.
  static Result<std::unique_ptr<RegisteredCache>> create(pull::PullConnector& connector,
                                                         std::span<const LayerPlanes> layers);
  ~RegisteredCache() { (void)close(Duration::zero()); }
  RegisteredCache(const RegisteredCache&) = delete;
  RegisteredCache& operator=(const RegisteredCache&) = delete;

  // Offers a payload of blocks of this cache; the key as the connector's. Errors: those of
  // PullConnector::put_ranges; limit (too_many_ranges: it lies in too many places, as some heads of
  // each token do); invalid_argument (out_of_bounds: it is of another cache). Both of these are
  // known before anything is offered or counted: such a payload can be copied. A failure frees no
  // ticket.
  Result<pull::PullMetadata> put(std::string_view key, const PayloadPlan& plan, uint64_t ticket,
                                 const pull::PutTerms& terms = {});

  // Tickets of payloads whose blocks nobody reads any more, since the last call.
  std::vector<uint64_t> take_free();
  // Payloads whose blocks may still be read.
  uint64_t held() const;

  // Takes back what is offered and waits for those who read it. Idempotent. Errors: busy
  // (reader_inside) says how many are still read: the memory has to stay.
  Status close(Duration timeout);

 private:
  struct Offered {
    std::string key;
    uint64_t generation = 0;  // 0: it is being put.
  };
  // Outlives this object with the offers that are still held.
  struct Tickets {
    void set_free(uint64_t ticket) SL_EXCLUDES(mutex);

    mutable Mutex mutex;
    CondVar freed;
    std::vector<uint64_t> free SL_GUARDED_BY(mutex);
    std::map<uint64_t, Offered> held SL_GUARDED_BY(mutex);
  };
  struct Placed {
    std::vector<pull::RegisteredRange> ranges;
    pull::Piece copied;
  };

  explicit RegisteredCache(pull::PullConnector& connector) : connector_(connector) {}
  Result<Placed> place(const PayloadPlan& plan, const pull::PutTerms& terms) const;
  // Null: no region holds all of it.
  std::shared_ptr<const Region> find(std::span<const std::byte> bytes) const;

  pull::PullConnector& connector_;
  std::vector<std::shared_ptr<const Region>> regions_;  // By address.
  const std::shared_ptr<Tickets> tickets_ = std::make_shared<Tickets>();
};

}  // namespace stagelink::kv
