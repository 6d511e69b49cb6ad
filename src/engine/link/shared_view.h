#pragma once

#include <memory>
#include <vector>

#include "base/unique_fd.h"
#include "memory/segment.h"
#include "stagelink/result.h"
#include "transport/shm/access_lanes.h"
#include "wire/hello.h"
#include "wire/peer_page_layout.h"
#include "wire/table_layout.h"

namespace stagelink::engine {

// What a same-host peer shares with us: its region table, the page of our connection, and its bell.
//
// Thread-safety: all methods may run at the same time.
class SharedView {
 public:
  // Takes what came with the welcome; nothing of it is believed. Errors: corrupt, incompatible
  // (version), limit, invalid_state (system).
  static Result<std::unique_ptr<SharedView>> open(const wire::Welcome& welcome,
                                                  std::vector<UniqueFd> fds);
  SharedView(const SharedView&) = delete;
  SharedView& operator=(const SharedView&) = delete;

  const wire::TableHeader& table() const noexcept { return *table_.at<wire::TableHeader>(); }
  // Null if the index lies beyond the table.
  const wire::TableEntry* row(uint32_t index) const noexcept;
  uint32_t rows_used() const noexcept;
  wire::PeerPage& page() const noexcept { return *page_.at<wire::PeerPage>(); }
  transport::AccessLanes& lanes() noexcept { return lanes_; }
  // Wakes the peer if it sleeps; after something was put into its ring.
  void ring_bell() noexcept;

 private:
  struct Parts {
    memory::SharedPages table;
    memory::SharedPages page;
    memory::SharedPages doorbell;
    UniqueFd bell;
  };
  SharedView(uint32_t table_capacity, Parts parts) noexcept;

  const uint32_t table_capacity_;
  memory::SharedPages table_;
  memory::SharedPages page_;
  memory::SharedPages doorbell_;
  UniqueFd bell_;
  transport::AccessLanes lanes_;
};

}  // namespace stagelink::engine
