#include "metrics/stat_snapshot.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <optional>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace stagelink::metrics {
namespace {

Status corrupt(std::string_view what) {
  return Status(Reason::kFrame, fmt::format("counters file: {}", what));
}

template <size_t N>
std::optional<std::string> padded_text(const char (&field)[N]) {
  const void* end = std::memchr(field, '\0', N);
  if (end == nullptr) return std::nullopt;
  std::string text(field, static_cast<size_t>(static_cast<const char*>(end) - field));
  const bool clean = std::none_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  return clean ? std::optional(std::move(text)) : std::nullopt;
}

bool is_name_char(char c, bool first) noexcept {
  const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  return letter || (!first && c >= '0' && c <= '9');
}

bool is_name(std::string_view text) noexcept {
  if (text.empty()) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!is_name_char(text[i], i == 0)) return false;
  }
  return true;
}

// key="value",key="value" with escapes \\ \" \n in the values; empty is fine.
bool are_labels(std::string_view text) noexcept {
  while (!text.empty()) {
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos || !is_name(text.substr(0, equals))) return false;
    text.remove_prefix(equals + 1);
    if (text.empty() || text[0] != '"') return false;
    size_t at = 1;
    while (at < text.size() && text[at] != '"') {
      if (text[at] == '\\') {
        const char escaped = at + 1 < text.size() ? text[at + 1] : '\0';
        if (escaped != '\\' && escaped != '"' && escaped != 'n') return false;
        ++at;
      }
      ++at;
    }
    if (at >= text.size()) return false;
    text.remove_prefix(at + 1);
    if (text.empty()) return true;
    if (text[0] != ',' || text.size() == 1) return false;
    text.remove_prefix(1);
  }
  return true;
}

class Decoder {
 public:
  explicit Decoder(std::span<const std::byte> file) noexcept : file_(file) {}

  Result<StatSnapshot> decode() {
    SL_TRY(read_header());
    StatSnapshot out;
    out.process = {header_.owner.pid, header_.owner.start_time, header_.owner.pid_namespace};
    out.instance = {header_.instance_high, header_.instance_low};
    out.started_unix_ms = header_.started_unix_ms;
    const auto name = padded_text(header_.engine_name);
    if (!name.has_value()) return corrupt("engine_name");
    out.engine_name = *name;
    for (uint32_t i = 0; i < header_.row_count; ++i) {
      SL_ASSIGN(StatSample sample, read_row(i));
      out.samples.push_back(std::move(sample));
    }
    return out;
  }

 private:
  Status read_header() {
    if (file_.size() > kMaxStatBytes) return corrupt("too long");
    if (file_.size() < sizeof header_) return corrupt("shorter than its header");
    std::memcpy(&header_, file_.data(), sizeof header_);
    if (header_.owner.magic != EntryOwner::kMagic) return corrupt("magic");
    if (header_.major != kStatMajor) {
      return Status(Reason::kVersion,
                    fmt::format("counters file: version {}.{}, this program reads {}.x",
                                header_.major, header_.minor, kStatMajor));
    }
    if (header_.owner.pid <= 0) return corrupt("pid");
    if (header_.file_bytes != file_.size()) return corrupt("file_bytes differs from its length");
    if (header_.header_bytes < sizeof header_) return corrupt("header_bytes");
    if (header_.rows_offset < header_.header_bytes) return corrupt("rows_offset");
    if (header_.row_count > kMaxStatRows) return corrupt("row_count");
    if (header_.row_bytes < sizeof(StatRow)) return corrupt("row_bytes");
    const uint64_t rows_end = header_.rows_offset + uint64_t{header_.row_count} * header_.row_bytes;
    if (header_.values_offset < rows_end) return corrupt("values_offset");
    if (header_.values_offset % sizeof(uint64_t) != 0) return corrupt("values_offset alignment");
    const uint64_t values_end = header_.values_offset + uint64_t{header_.value_count} * 8;
    if (values_end > file_.size()) return corrupt("value_count");
    return {};
  }

  Result<StatSample> read_row(uint32_t index) const {
    StatRow row;
    const size_t at = header_.rows_offset + size_t{index} * header_.row_bytes;
    std::memcpy(&row, file_.data() + at, sizeof row);
    StatSample sample;
    const auto name = padded_text(row.name);
    const auto labels = padded_text(row.labels);
    const auto help = padded_text(row.help);
    if (!name.has_value() || !is_name(*name)) return corrupt(fmt::format("name of row {}", index));
    if (!labels.has_value() || !are_labels(*labels)) return corrupt("labels of " + *name);
    if (!help.has_value()) return corrupt("help of " + *name);
    sample.name = *name;
    sample.labels = *labels;
    sample.help = *help;
    if (uint64_t{row.first_value} + row.value_count > header_.value_count) {
      return corrupt("values of " + *name);
    }
    SL_TRY(read_values(row, sample));
    return sample;
  }

  Status read_values(const StatRow& row, StatSample& sample) const {
    sample.kind = static_cast<StatKind>(row.kind);
    switch (sample.kind) {
      case StatKind::kCounter:
      case StatKind::kGauge:
        if (row.value_count != 1) return corrupt("value_count of " + sample.name);
        sample.counter = value(row.first_value);
        sample.gauge = static_cast<int64_t>(sample.counter);
        return {};
      case StatKind::kHistogram: return read_histogram(row, sample);
    }
    return corrupt("kind of " + sample.name);
  }

  Status read_histogram(const StatRow& row, StatSample& sample) const {
    const uint32_t bounds = row.value_count / 2 - (row.value_count >= 2 ? 1 : 0);
    if (row.value_count % 2 != 0 || bounds == 0 || bounds > kMaxHistogramBounds) {
      return corrupt("value_count of " + sample.name);
    }
    for (uint32_t i = 0; i < bounds; ++i) {
      const auto bound = std::bit_cast<double>(value(row.first_value + i));
      const bool rises = sample.bounds.empty() || bound > sample.bounds.back();
      if (!std::isfinite(bound) || !rises) return corrupt("bounds of " + sample.name);
      sample.bounds.push_back(bound);
    }
    for (uint32_t i = 0; i <= bounds; ++i) {
      sample.buckets.push_back(value(row.first_value + bounds + i));
    }
    sample.sum = std::bit_cast<double>(value(row.first_value + row.value_count - 1));
    return {};
  }

  uint64_t value(uint32_t index) const noexcept {
    uint64_t out = 0;
    std::memcpy(&out, file_.data() + header_.values_offset + size_t{index} * 8, sizeof out);
    return out;
  }

  std::span<const std::byte> file_;
  StatHeader header_;
};

Status read_failure(const std::string& path, const char* what, int error) {
  Reason reason = Reason::kSystem;
  if (error == ENOENT || error == ENOTDIR) reason = Reason::kNotFound;
  if (error == EACCES || error == EPERM) reason = Reason::kPermission;
  if (error == EMFILE || error == ENFILE) reason = Reason::kNofile;
  if (error == ELOOP) reason = Reason::kFrame;  // A symbolic link.
  return Status(reason, fmt::format("{}: cannot {}: {}", path, what, std::strerror(error)));
}

}  // namespace

const StatSample* StatSnapshot::find(std::string_view name) const noexcept {
  const auto found = std::find_if(samples.begin(), samples.end(),
                                  [name](const StatSample& sample) { return sample.name == name; });
  return found == samples.end() ? nullptr : &*found;
}

Result<StatSnapshot> decode_stat(std::span<const std::byte> file) { return Decoder(file).decode(); }

Result<StatSnapshot> read_stat_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd) return read_failure(path, "open", errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return read_failure(path, "stat", errno);
  if (!S_ISREG(info.st_mode)) return Status(Reason::kFrame, path + ": not a plain file");
  std::vector<std::byte> bytes(kMaxStatBytes + 1);
  size_t got = 0;
  while (got < bytes.size()) {
    const ssize_t count =
        ::pread(fd.get(), bytes.data() + got, bytes.size() - got, static_cast<off_t>(got));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return read_failure(path, "read", errno);
    if (count == 0) break;
    got += static_cast<size_t>(count);
  }
  bytes.resize(got);
  auto snapshot = decode_stat(bytes);
  if (snapshot.ok()) return snapshot;
  return Status(snapshot.status().reason(),
                fmt::format("{}: {}", path, snapshot.status().message()));
}

}  // namespace stagelink::metrics
