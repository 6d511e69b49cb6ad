#pragma once

#include <memory>

#include <nanobind/nanobind.h>

#include "connector/moriio/writer/writer_host.h"

namespace stagelink::bindings {

// What the writer asks of a Python object:
//   consumer_of(block_ids, decode_rank, task) -> (host, port) | None
//   plan(block_ids, decode_rank, tasks) -> [(session, local_offsets, remote_offsets, sizes), ...]
//   post(session, local_offsets, remote_offsets, sizes) -> status, for sessions that are not ours
// and of a task: its `event`, None or something with synchronize(). What they raise ends one
// transfer.
//
// Thread-safety: called without the interpreter lock, which it takes.
class PyWriterHost final : public moriio::WriterHost {
 public:
  explicit PyWriterHost(nanobind::object host) noexcept;
  ~PyWriterHost() override;

  Result<std::optional<Endpoint>> consumer_of(const moriio::Allocation& allocation,
                                              const moriio::WriteTask& task) override;
  Result<std::vector<moriio::Move>> plan(const moriio::Allocation& allocation,
                                         std::span<const moriio::WriteTask> tasks) override;

 private:
  nanobind::object host_;
};

// Waits for task.event.
std::unique_ptr<moriio::LayerTicket> make_ticket(nanobind::object task);

}  // namespace stagelink::bindings
