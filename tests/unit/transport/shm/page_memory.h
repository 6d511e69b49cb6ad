#pragma once

#include <new>
#include <vector>

#include "wire/peer_page_layout.h"
#include "wire/table_layout.h"

namespace stagelink::transport {

// A peer page and the header of a region table, as one process sees them.
class PageMemory {
 public:
  PageMemory() : pages_(2 + wire::kPeerPageBytes / sizeof(Page)) {
    page_ = new (pages_.data()) wire::PeerPage{};
    table_ = new (&pages_.back()) wire::TableHeader{};
  }
  wire::PeerPage& page() noexcept { return *page_; }
  wire::TableHeader& table() noexcept { return *table_; }

 private:
  struct alignas(4096) Page {
    std::byte bytes[4096];
  };
  std::vector<Page> pages_;
  wire::PeerPage* page_;
  wire::TableHeader* table_;
};

}  // namespace stagelink::transport
