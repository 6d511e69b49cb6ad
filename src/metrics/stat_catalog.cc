#include "metrics/stat_catalog.h"

#include <array>
#include <string_view>

#include <fmt/format.h>

namespace stagelink::metrics {
namespace {

struct Text {
  std::string_view name;
  std::string_view help;
};

constexpr std::array<Text, kCounterCount> kCounters = {{
    {"transfers_started", "Batches that were accepted."},
    {"transfers_succeeded", "Batches whose bytes all arrived."},
    {"read_bytes", "Bytes that successful reads brought here."},
    {"written_bytes", "Bytes that successful writes took to a peer."},
    {"shm_bytes", "Bytes that this engine copied through mapped memory of a peer."},
    {"cma_bytes", "Bytes that this engine copied out of or into a peer's own memory."},
    {"unix_bytes", "Bytes that this engine moved over UNIX sockets."},
    {"tcp_bytes", "Bytes that this engine moved over TCP."},
    {"served_bytes", "Bytes that this engine moved over a socket because a peer asked."},
    {"notifications_sent", "Messages that were queued at a peer."},
    {"notifications_received", "Messages that arrived from peers."},
    {"duplicate_completions", "Completions of a transfer that had ended already; ignored."},
    {"peers_connected", "Connections to peers that were set up."},
    {"peers_lost", "Peers that died, restarted or cut the connection."},
    {"handshakes_refused", "Hellos that this engine refused."},
    {"faults_injected", "Faults that the fault transport made on purpose."},
}};

constexpr std::array<Text, kGaugeCount> kGauges = {{
    {"regions", "Regions that are registered now."},
    {"registered_bytes", "Bytes of registered memory, allocated memory included."},
    {"allocated_bytes", "Bytes of shareable memory that this engine allocated."},
    {"mapped_bytes", "Bytes of peers' memory that are mapped here."},
    {"peers", "Peers that this engine is connected to."},
    {"inbound_peers", "Peers that are connected to this engine."},
    {"transfers_in_flight", "Batches that have not ended."},
    {"retiring_regions", "Regions deregistered while a peer was inside, whose memory is kept."},
}};

constexpr std::array<double, 17> kSecondBounds = {1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5,
                                                  1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3,
                                                  1e-2, 2.5e-2, 0.1,  1.0,  10.0};
constexpr std::array<double, 14> kByteBounds = {
    64.0,      256.0,     1024.0,     4096.0,     16384.0,     65536.0,      262144.0,
    1048576.0, 4194304.0, 16777216.0, 67108864.0, 268435456.0, 1073741824.0, 4294967296.0};

constexpr std::array<Text, kHistogramCount> kHistograms = {{
    {"transfer_duration_seconds", "From submission to the end of successful batches."},
    {"transfer_size_bytes", "Bytes of successful batches."},
}};

CatalogRow make_row(std::string name, std::string_view help, StatKind kind) {
  CatalogRow row;
  row.name = std::move(name);
  row.help = help;
  row.kind = kind;
  return row;
}

}  // namespace

uint32_t CatalogRow::value_count() const noexcept {
  return kind == StatKind::kHistogram ? static_cast<uint32_t>(2 * bounds.size() + 2) : 1;
}

std::vector<CatalogRow> stat_catalog() {
  std::vector<CatalogRow> rows;
  for (const Text& text : kCounters) {
    rows.push_back(
        make_row(fmt::format("stagelink_{}_total", text.name), text.help, StatKind::kCounter));
  }
  for (const Text& text : kGauges) {
    rows.push_back(make_row(fmt::format("stagelink_{}", text.name), text.help, StatKind::kGauge));
  }
  for (const Text& text : kHistograms) {
    rows.push_back(
        make_row(fmt::format("stagelink_{}", text.name), text.help, StatKind::kHistogram));
  }
  rows[row_of(Histogram::kTransferSeconds)].bounds = kSecondBounds;
  rows[row_of(Histogram::kTransferBytes)].bounds = kByteBounds;
  for (int i = 1; i < kReasonCount; ++i) {
    const auto reason = static_cast<Reason>(i);
    const Code code = code_of(reason);
    CatalogRow row = make_row(
        "stagelink_failures_total",
        "Failures at their origin, by what they are, what they broke and why.", StatKind::kCounter);
    row.labels = fmt::format("code=\"{}\",scope=\"{}\",reason=\"{}\"", code_name(code),
                             scope_name(scope_of(code)), reason_name(reason));
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace stagelink::metrics
