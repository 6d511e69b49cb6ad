#include "metrics/engine_metrics.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <span>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "base/process_id.h"
#include "base/runtime_dir.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "metrics/stat_catalog.h"
#include "metrics/stat_snapshot.h"

namespace stagelink::metrics {
namespace {

template <size_t N>
void copy_text(char (&field)[N], std::string_view text) {
  std::ranges::copy(to_plain_text(text, N - 1), field);
}

size_t round_up(size_t value, size_t unit) noexcept { return (value + unit - 1) / unit * unit; }

// The whole file.
std::vector<std::byte> build_image(const std::string& engine_name, const InstanceId& instance) {
  const std::vector<CatalogRow> catalog = stat_catalog();
  uint32_t value_count = 0;
  for (const CatalogRow& row : catalog) value_count += row.value_count();

  StatHeader header;
  const ProcessId self = ProcessId::self();
  header.owner = {.pid = self.pid,
                  .reserved = 0,
                  .start_time = self.start_time,
                  .pid_namespace = self.pid_namespace};
  header.rows_offset = static_cast<uint32_t>(sizeof header);
  header.row_count = static_cast<uint32_t>(catalog.size());
  header.row_bytes = static_cast<uint32_t>(sizeof(StatRow));
  header.values_offset =
      static_cast<uint32_t>(round_up(sizeof header + catalog.size() * sizeof(StatRow), 64));
  header.value_count = value_count;
  header.file_bytes = round_up(header.values_offset + size_t{value_count} * 8, 4096);
  header.instance_high = instance.high;
  header.instance_low = instance.low;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  header.started_unix_ms =
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
  copy_text(header.engine_name, engine_name);

  std::vector<std::byte> image(header.file_bytes);
  std::memcpy(image.data(), &header, sizeof header);
  uint32_t next_value = 0;
  std::byte* row_at = image.data() + header.rows_offset;
  for (const CatalogRow& source : catalog) {
    StatRow row;
    copy_text(row.name, source.name);
    copy_text(row.labels, source.labels);
    copy_text(row.help, source.help);
    row.kind = static_cast<uint32_t>(source.kind);
    row.first_value = next_value;
    row.value_count = source.value_count();
    std::memcpy(row_at, &row, sizeof row);
    row_at += sizeof row;
    std::byte* const values = image.data() + header.values_offset + size_t{next_value} * 8;
    std::ranges::copy(std::as_bytes(source.bounds), values);
    next_value += row.value_count;
  }
  return image;
}

// The memory of the counters: the mapped file, or private memory if there is none.
struct Mapping {
  std::byte* base = nullptr;
  size_t bytes = 0;
  UniqueFd file;     // Holds the owner's lock; empty for private memory.
  std::string path;  // Empty for private memory.
};

// Makes the file under a name of its own and gives it the right one when it is whole.
Status map_file(const std::string& path, std::span<const std::byte> image, Mapping& out) {
  const std::string draft = path.substr(0, path.rfind('.')) + ".init";
  SL_ASSIGN(UniqueFd file, create_init_entry(draft));
  const auto failure = [&](const char* what, int error) {
    ::unlink(draft.c_str());
    if (out.base != nullptr) ::munmap(out.base, image.size());
    out.base = nullptr;
    return Status(Reason::kSystem, fmt::format("{}: {}: {}", path, what, std::strerror(error)));
  };
  // Reserves the space: a full file system is an error here and not a SIGBUS later.
  const int error = ::posix_fallocate(file.get(), 0, static_cast<off_t>(image.size()));
  if (error != 0) return failure("cannot reserve", error);
  void* base = ::mmap(nullptr, image.size(), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (base == MAP_FAILED) return failure("cannot map", errno);
  out.base = static_cast<std::byte*>(base);
  std::memcpy(out.base, image.data(), image.size());
  // A file that already stands there is a dead engine's: of an earlier process with this pid.
  if (::rename(draft.c_str(), path.c_str()) != 0) return failure("cannot rename", errno);
  out.bytes = image.size();
  out.file = std::move(file);
  out.path = path;
  return {};
}

// Throws std::bad_alloc when not even private memory is left.
Mapping make_mapping(const std::string& path, std::span<const std::byte> image) {
  Mapping out;
  const Status status = map_file(path, image, out);
  if (!status.ok()) {
    log(LogLevel::kWarning, "metrics",
        fmt::format("{}; counters are kept in private memory, `stagelink stat` will not see them",
                    status.message()));
    void* base =
        ::mmap(nullptr, image.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    out.base = static_cast<std::byte*>(base);
    out.bytes = image.size();
    std::memcpy(out.base, image.data(), image.size());
  }
  return out;
}

class MappedMetrics final : public EngineMetrics {
 public:
  explicit MappedMetrics(Mapping mapping)
      : mapping_(std::move(mapping)), owner_pid_(::getpid()), catalog_(stat_catalog()) {
    uint32_t value_offset = 0;
    std::memcpy(&value_offset, mapping_.base + offsetof(StatHeader, values_offset),
                sizeof value_offset);
    auto* const values = reinterpret_cast<uint64_t*>(mapping_.base + value_offset);
    uint32_t next = 0;
    for (const CatalogRow& row : catalog_) {
      rows_.push_back(values + next);
      next += row.value_count();
    }
  }

  ~MappedMetrics() override {
    close();
    ::munmap(mapping_.base, mapping_.bytes);
  }
  MappedMetrics(const MappedMetrics&) = delete;
  MappedMetrics& operator=(const MappedMetrics&) = delete;

  void add(Counter counter, uint64_t value) noexcept override { bump(row_of(counter), value); }
  void add(Gauge gauge, int64_t delta) noexcept override {
    bump(row_of(gauge), static_cast<uint64_t>(delta));
  }
  void fail(Reason reason) noexcept override {
    if (reason != Reason::kOk && static_cast<int>(reason) < kReasonCount) bump(row_of(reason), 1);
  }

  void observe(Histogram histogram, double value) noexcept override {
    const size_t row = row_of(histogram);
    const auto bounds = catalog_[row].bounds;
    // The first bound that is not below the value: le means "less or equal".
    const auto bucket =
        static_cast<size_t>(std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin());
    cell(row, bounds.size() + bucket).fetch_add(1, std::memory_order_relaxed);
    std::atomic_ref<uint64_t> sum = cell(row, 2 * bounds.size() + 1);
    uint64_t before = sum.load(std::memory_order_relaxed);
    while (!sum.compare_exchange_weak(
        before, std::bit_cast<uint64_t>(std::bit_cast<double>(before) + value),
        std::memory_order_relaxed)) {
    }
  }

  std::string prometheus_text() const override {
    const auto snapshot = decode_stat(copy_image());
    return snapshot.ok() ? to_prometheus(*snapshot)
                         : fmt::format("# {}\n", snapshot.status().to_string());
  }

  void close() noexcept override {
    if (closed_.exchange(true) || mapping_.path.empty() || ::getpid() != owner_pid_) return;
    ::unlink(mapping_.path.c_str());
    mapping_.file.reset();  // Its lock judges a file that has a name.
  }

 private:
  // All counters are relaxed: a value orders nothing, and each is whole by itself.
  std::atomic_ref<uint64_t> cell(size_t row, size_t index) const noexcept {
    return std::atomic_ref<uint64_t>(rows_[row][index]);
  }
  void bump(size_t row, uint64_t value) noexcept {
    cell(row, 0).fetch_add(value, std::memory_order_relaxed);
  }
  // Word by word, because other threads add to it meanwhile.
  std::vector<std::byte> copy_image() const {
    std::vector<std::byte> out(mapping_.bytes);
    for (size_t at = 0; at < mapping_.bytes; at += sizeof(uint64_t)) {
      const std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(mapping_.base + at));
      const uint64_t value = word.load(std::memory_order_relaxed);
      std::memcpy(out.data() + at, &value, sizeof value);
    }
    return out;
  }

  Mapping mapping_;  // Fixed after construction, but for the file that close() gives back.
  const pid_t owner_pid_;
  const std::vector<CatalogRow> catalog_;
  std::vector<uint64_t*> rows_;  // The first value of each row; fixed after construction.
  std::atomic<bool> closed_{false};
};

}  // namespace

std::unique_ptr<EngineMetrics> EngineMetrics::create(const std::string& runtime_dir,
                                                     const std::string& engine_name,
                                                     InstanceId instance) {
  const std::string path = runtime_entry_path(runtime_dir, ::getpid(), instance, "stat");
  return std::make_unique<MappedMetrics>(make_mapping(path, build_image(engine_name, instance)));
}

}  // namespace stagelink::metrics
