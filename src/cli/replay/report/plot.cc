#include "cli/replay/report/plot.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "cli/replay/report/axis.h"

namespace stagelink::cli::replay {
namespace {

constexpr double kMiB = 1 << 20;
constexpr double kNsPerMs = 1e6;
constexpr double kNsPerSecond = 1e9;
constexpr size_t kBins = 60;

constexpr double kTop = 84;
constexpr double kBottom = 360;
constexpr double kPanelWidth = 400;

constexpr const char* kOurs = "#1f6fb2";
constexpr const char* kLimit = "#c9742c";

constexpr const char* kHead =
    R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 420" font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif" font-size="12" fill="#333">
<rect width="1000" height="420" fill="#fff"/>
)";

std::string text(double x, double y, const char* anchor, const std::string& what) {
  return fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>)"
                     "\n",
                     x, y, anchor, what);
}

std::string heading(double x, double y, int size, const std::string& what) {
  return fmt::format(R"(<text x="{:.1f}" y="{:.1f}" font-size="{}" font-weight="600">{}</text>)"
                     "\n",
                     x, y, size, what);
}

std::string line(double x1, double y1, double x2, double y2, const char* color) {
  return fmt::format(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="{}"/>)"
                     "\n",
                     x1, y1, x2, y2, color);
}

std::string dot(double x, double y, const char* color) {
  return fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="3" fill="{}" fill-opacity="0.55"/>)"
                     "\n",
                     x, y, color);
}

struct Panel {
  double left;
  Axis x;
  Axis y;
};

std::string frame(const Panel& panel, const std::string& x_name, const std::string& title) {
  std::string svg = heading(panel.left, kTop - 14, 13, title);
  for (const Axis::Tick& tick : panel.y.ticks()) {
    svg += line(panel.left, tick.pixel, panel.left + kPanelWidth, tick.pixel, "#e4e4e4");
    svg += text(panel.left - 8, tick.pixel + 4, "end", tick.label);
  }
  for (const Axis::Tick& tick : panel.x.ticks()) {
    svg += line(tick.pixel, kBottom, tick.pixel, kBottom + 4, "#888");
    svg += text(tick.pixel, kBottom + 18, "middle", tick.label);
  }
  svg += line(panel.left, kBottom, panel.left + kPanelWidth, kBottom, "#888");
  return svg + text(panel.left + kPanelWidth / 2, kBottom + 38, "middle", x_name);
}

std::string key(double x, double y, const char* color, const std::string& name) {
  return dot(x, y - 4, color) + text(x + 9, y, "start", name);
}

std::string latency_panel(const RunRecord& record, double left) {
  double low_x = 1e300;
  double high_x = 0;
  double low_y = 1e300;
  double high_y = 0;
  const auto grow = [&](double mib, int64_t ns) {
    const double ms = static_cast<double>(ns) / kNsPerMs;
    low_x = std::min(low_x, mib);
    high_x = std::max(high_x, mib);
    low_y = std::min(low_y, ms);
    high_y = std::max(high_y, ms);
  };
  std::vector<uint32_t> batches(record.requests.size(), 0);
  for (const TransferSample& sample : record.transfers) ++batches[sample.request];
  const auto limit_of = [&](const TransferSample& sample) {
    return batches[sample.request] == 1 ? record.requests[sample.request].limit_ns : 0;
  };
  for (const TransferSample& sample : record.transfers) {
    grow(static_cast<double>(sample.bytes) / kMiB, sample.ns);
    if (const int64_t limit = limit_of(sample); limit > 0) {
      grow(static_cast<double>(sample.bytes) / kMiB, limit);
    }
  }
  const Panel panel{left, Axis::logarithmic(low_x, high_x, left, left + kPanelWidth),
                    Axis::logarithmic(low_y, high_y, kBottom, kTop)};
  std::string svg = frame(panel, "size of the batch, MiB", "Time of a batch, ms");
  for (const bool limit : {true, false}) {  // Ours on top.
    for (const TransferSample& sample : record.transfers) {
      const int64_t ns = limit ? limit_of(sample) : sample.ns;
      if (ns == 0) continue;
      svg += dot(panel.x.pixel(static_cast<double>(sample.bytes) / kMiB),
                 panel.y.pixel(static_cast<double>(ns) / kNsPerMs), limit ? kLimit : kOurs);
    }
  }
  return svg + key(left + 240, kTop - 14, kOurs, "batch") +
         key(left + 300, kTop - 14, kLimit, "memcpy, same ranges");
}

// Bytes in each of kBins equal parts of the run; a batch spreads evenly over its time.
std::vector<double> bytes_by_time(const RunRecord& record, int64_t begin, double bin_ns) {
  std::vector<double> bins(kBins, 0);
  for (const TransferSample& sample : record.transfers) {
    const double from = static_cast<double>(sample.start_ns - begin);
    const double to = from + static_cast<double>(std::max<int64_t>(sample.ns, 1));
    for (size_t i = 0; i < kBins; ++i) {
      const double low = std::max(from, static_cast<double>(i) * bin_ns);
      const double high = std::min(to, static_cast<double>(i + 1) * bin_ns);
      if (high > low) bins[i] += static_cast<double>(sample.bytes) * (high - low) / (to - from);
    }
  }
  return bins;
}

std::string throughput_panel(const RunRecord& record, double left) {
  int64_t begin = INT64_MAX;
  int64_t end = 0;
  for (const TransferSample& sample : record.transfers) {
    begin = std::min(begin, sample.start_ns);
    end = std::max(end, sample.start_ns + sample.ns);
  }
  const double bin_ns = static_cast<double>(std::max<int64_t>(end - begin, 1)) / kBins;
  const auto bins = bytes_by_time(record, begin, bin_ns);
  const double highest = *std::ranges::max_element(bins) / bin_ns;
  const double seconds = bin_ns * kBins / kNsPerSecond;
  const Panel panel{left, Axis::linear(seconds, left, left + kPanelWidth),
                    Axis::linear(highest, kBottom, kTop)};
  std::string svg =
      frame(panel, "time, s", "Throughput over time, GB/s, with filling and checking");
  for (size_t i = 0; i < kBins; ++i) {
    const double bin_s = bin_ns / kNsPerSecond;
    const double x1 = panel.x.pixel(static_cast<double>(i) * bin_s);
    const double x2 = panel.x.pixel(static_cast<double>(i + 1) * bin_s);
    const double y = panel.y.pixel(bins[i] / bin_ns);
    svg += fmt::format(
        R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill="{}" fill-opacity="0.8"/>)"
        "\n",
        x1, y, std::max(x2 - x1 - 0.8, 0.4), kBottom - y, kOurs);
  }
  return svg;
}

}  // namespace

std::string to_svg(const RunPlan& plan, const RunRecord& record, const Statistics& statistics) {
  constexpr double kLeft = 64;
  constexpr double kRight = 560;
  std::string svg = kHead;
  svg +=
      heading(kLeft, 26, 16,
              fmt::format("{} of {}: {:.2f} GiB in {} requests",
                          plan.base.mode == Mode::kRead ? "Pull" : "Push", plan.model,
                          static_cast<double>(statistics.bytes) / (1 << 30), statistics.requests));
  svg += text(kLeft, 46, "start",
              fmt::format("transport {}, {:.2f} GB/s while moving, {:.2f} of memcpy",
                          plan.options.transport, statistics.gb_per_s, statistics.ratio_to_limit));
  if (record.transfers.empty()) {
    svg += text(kLeft, kTop + 40, "start", "No batch was moved.");
  } else {
    svg += latency_panel(record, kLeft) + throughput_panel(record, kRight);
  }
  return svg + "</svg>\n";
}

Status check_plot_path(const std::string& path) {
  const std::filesystem::path file(path);
  if (file.extension() != ".svg") {
    return Status(Reason::kInvalidArgument,
                  fmt::format("--plot: \"{}\" does not end in .svg", path));
  }
  const auto directory = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
  if (::access(directory.c_str(), W_OK) != 0) {
    return Status(
        errno == ENOENT ? Reason::kNotFound : Reason::kPermission,
        fmt::format("--plot: directory {}: {}", directory.string(), std::strerror(errno)));
  }
  return {};
}

Status write_plot(const std::string& path, const std::string& svg) {
  std::ofstream file(path, std::ios::trunc);
  file << svg;
  file.close();
  if (file.good()) return {};
  return Status(errno == ENOSPC ? Reason::kNoSpace : Reason::kSystem,
                fmt::format("writing {}: {}", path, std::strerror(errno)));
}

}  // namespace stagelink::cli::replay
