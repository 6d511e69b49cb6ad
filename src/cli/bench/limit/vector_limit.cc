#include "cli/bench/limit/vector_limit.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "cli/bench/rig/process_load.h"

namespace stagelink::cli::bench {

namespace {

constexpr size_t kMostVectors = 1024;

std::byte* end_of(const iovec& vector) noexcept {
  return static_cast<std::byte*>(vector.iov_base) + vector.iov_len;
}

}  // namespace

Contender VectorLimit::read() { return contender(::process_vm_readv); }

Contender VectorLimit::write() { return contender(::process_vm_writev); }

Contender VectorLimit::contender(Call call) {
  return [this, call](const Picks& picks, Sample& sample) -> Status {
    const double start_us = now_us();
    SL_TRY(move(picks, call));
    sample.wall_us = now_us() - start_us;
    return Status();
  };
}

Status VectorLimit::move(const Picks& picks, Call call) {
  here_.clear();
  there_.clear();
  for (size_t i = 0; i < picks.sizes.size(); ++i) {
    std::byte* const here = local_.data() + picks.local[i];
    auto* const there = reinterpret_cast<std::byte*>(remote_address_ + picks.remote[i]);
    if (i > 0 && end_of(here_.back()) == here && end_of(there_.back()) == there) {
      here_.back().iov_len += picks.sizes[i];
      there_.back().iov_len += picks.sizes[i];
    } else {
      here_.push_back({here, picks.sizes[i]});
      there_.push_back({there, picks.sizes[i]});
    }
  }
  for (size_t at = 0; at < here_.size(); at += kMostVectors) {
    const size_t count = std::min(kMostVectors, here_.size() - at);
    size_t wanted = 0;
    for (size_t i = at; i < at + count; ++i) wanted += here_[i].iov_len;
    const ssize_t moved = call(process_, &here_[at], count, &there_[at], count, 0);
    if (moved < 0 || static_cast<size_t>(moved) != wanted) {
      return Status(Reason::kPermission,
                    fmt::format("the kernel's copy gave {} of {} bytes: {}", moved, wanted,
                                moved < 0 ? std::strerror(errno) : "cut short"));
    }
  }
  return Status();
}

}  // namespace stagelink::cli::bench
