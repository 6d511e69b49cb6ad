#include "cli/bench/limit/read_limit.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "cli/bench/rig/process_load.h"

namespace stagelink::cli::bench {

namespace {

constexpr size_t kVectorsPerRead = 1024;

std::byte* end_of(const iovec& vector) noexcept {
  return static_cast<std::byte*>(vector.iov_base) + vector.iov_len;
}

}  // namespace

Contender ReadLimit::read() {
  return [this](const Picks& picks, Sample& sample) -> Status {
    const double start_us = now_us();
    SL_TRY(move(picks));
    sample.wall_us = now_us() - start_us;
    return Status();
  };
}

Status ReadLimit::move(const Picks& picks) {
  here_.clear();
  there_.clear();
  for (size_t i = 0; i < picks.sizes.size(); ++i) {
    std::byte* const to = local_.data() + picks.local[i];
    auto* const from = reinterpret_cast<std::byte*>(remote_address_ + picks.remote[i]);
    if (i > 0 && end_of(here_.back()) == to && end_of(there_.back()) == from) {
      here_.back().iov_len += picks.sizes[i];
      there_.back().iov_len += picks.sizes[i];
    } else {
      here_.push_back({to, picks.sizes[i]});
      there_.push_back({from, picks.sizes[i]});
    }
  }
  for (size_t at = 0; at < here_.size(); at += kVectorsPerRead) {
    const size_t count = std::min(kVectorsPerRead, here_.size() - at);
    size_t wanted = 0;
    for (size_t i = at; i < at + count; ++i) wanted += here_[i].iov_len;
    const ssize_t moved = ::process_vm_readv(process_, &here_[at], count, &there_[at], count, 0);
    if (moved < 0 || static_cast<size_t>(moved) != wanted) {
      return Status(Reason::kPermission,
                    fmt::format("process_vm_readv gave {} of {} bytes: {}", moved, wanted,
                                moved < 0 ? std::strerror(errno) : "cut short"));
    }
  }
  return Status();
}

}  // namespace stagelink::cli::bench
