// Which copy is fastest from a peer's memory, and how it stands to memcpy within one process.
//
//   copy_kernel_bench [REPS] [CORE] [collapse]
//
// The work: regions of 1 GiB, min(65536, 1 GiB / block) slots, in each repetition other random and
// distinct ones on both sides. Source: a segment of 4 KiB pages (with `collapse`: of huge pages).
// Destination: private memory in huge pages, or a segment. "ratio" is the time of memcpy between
// two private regions in huge pages divided by the row's; "nt" the same against the widest
// streaming copy between them. All rows of a block size are measured in turns, one repetition each;
// medians.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>

#include "base/random.h"
#include "memory/copy_kernel.h"
#include "memory/segment.h"

namespace stagelink::memory {
namespace {

constexpr size_t kRegionBytes = size_t{1} << 30;
constexpr size_t kHugePage = 2 << 20;

struct Work {
  size_t block_bytes;
  size_t blocks;
};
constexpr Work kWorks[] = {{64, 4096},   {128, 4096},   {256, 4096},  {1024, 4096},
                           {4096, 4096}, {16384, 4096}, {65536, 1024}};

struct Copies {
  std::byte* to;
  const std::byte* from;
  const std::vector<uint64_t>& to_offsets;
  const std::vector<uint64_t>& from_offsets;
  size_t bytes;
};

struct Row {
  std::string name;
  std::byte* to;
  const std::byte* from;
  std::function<void(const Copies&)> run;
  std::vector<double> micros;
};

[[noreturn]] void stop(std::string_view why) {
  fmt::print(stderr, "copy_kernel_bench: {}\n", why);
  std::exit(1);
}

std::byte* private_huge_region() {
  void* raw = ::mmap(nullptr, kRegionBytes + kHugePage, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) stop("no memory for a private region");
  const auto address = reinterpret_cast<uintptr_t>(raw);
  auto* const aligned =
      static_cast<std::byte*>(raw) + ((kHugePage - address % kHugePage) % kHugePage);
  ::madvise(aligned, kRegionBytes, MADV_HUGEPAGE);
  std::memset(aligned, 1, kRegionBytes);
  return aligned;
}

Segment shared_region(Effort huge_pages) {
  SegmentOptions options;
  options.huge_pages = huge_pages;
  auto segment = Segment::create(kRegionBytes, options, {});
  if (!segment.ok()) stop(segment.status().to_string());
  std::memset(segment->bytes().data(), 2, kRegionBytes);
  return *std::move(segment);
}

std::vector<uint64_t> pick_slots(const Work& work, uint64_t seed) {
  std::vector<uint64_t> slots(std::min<size_t>(65536, kRegionBytes / work.block_bytes));
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = i * work.block_bytes;
  SplitMix64 random(seed);
  for (size_t i = 0; i < work.blocks; ++i) {
    std::swap(slots[i], slots[i + random.below(slots.size() - i)]);
  }
  slots.resize(work.blocks);
  return slots;
}

void copy_one_by_one(const CopyKernel& kernel, const Copies& c) {
  for (size_t i = 0; i < c.to_offsets.size(); ++i) {
    kernel.copy(c.to + c.to_offsets[i], c.from + c.from_offsets[i], c.bytes);
  }
  copy_fence();
}

void copy_batched(const CopyKernel& kernel, const Copies& c) {
  kernel.copy_many(c.to_offsets.size(), [&c](size_t i) {
    return CopyPiece{c.to + c.to_offsets[i], c.from + c.from_offsets[i], c.bytes};
  });
  copy_fence();
}

CopyKernel always_streaming(CopyKernel kernel) {
  if (kernel.streaming_min_bytes != std::numeric_limits<size_t>::max()) {
    kernel.streaming_min_bytes = 1;
  }
  return kernel;
}

struct Regions {
  std::byte* private_a;
  std::byte* private_b;
  std::byte* shared_source;
  std::byte* shared_target;
};

std::vector<Row> make_rows(const Regions& regions) {
  const auto kernels = runnable_copy_kernels();
  const CopyKernel libc = kernels.back();
  const CopyKernel widest = always_streaming(kernels.front());
  const auto one = [](const CopyKernel& kernel) {
    return [kernel](const Copies& c) { copy_one_by_one(kernel, c); };
  };
  const auto many = [](const CopyKernel& kernel) {
    return [kernel](const Copies& c) { copy_batched(kernel, c); };
  };
  std::vector<Row> rows;
  rows.push_back({"limit: memcpy, private", regions.private_b, regions.private_a, one(libc), {}});
  rows.push_back({"nt: streaming, private", regions.private_b, regions.private_a, one(widest), {}});
  for (const CopyKernel& kernel : kernels) {
    const CopyKernel forced = always_streaming(kernel);
    const std::string name = kernel.name;
    rows.push_back({name, regions.private_b, regions.shared_source, one(forced), {}});
    rows.push_back({name + " batched", regions.private_b, regions.shared_source, many(forced), {}});
  }
  rows.push_back(
      {"as picked, batched", regions.private_b, regions.shared_source, many(kernels.front()), {}});
  rows.push_back({"as picked, batched, to shared",
                  regions.shared_target,
                  regions.shared_source,
                  many(kernels.front()),
                  {}});
  rows.push_back({"as picked, batched, private to shared",
                  regions.shared_target,
                  regions.private_a,
                  many(kernels.front()),
                  {}});
  return rows;
}

double quantile(std::vector<double> values, double share) {
  const auto at =
      values.begin() + static_cast<ptrdiff_t>(share * static_cast<double>(values.size()));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

void measure(const Work& work, int repetitions, std::vector<Row>& rows) {
  for (Row& row : rows) row.micros.clear();
  for (int r = -2; r < repetitions; ++r) {  // Two to warm up.
    uint64_t seed = static_cast<uint64_t>(r + 2) * 1000;
    for (Row& row : rows) {
      const auto to = pick_slots(work, ++seed);
      const auto from = pick_slots(work, seed + 500);
      const Copies copies{row.to, row.from, to, from, work.block_bytes};
      const auto start = std::chrono::steady_clock::now();
      row.run(copies);
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - start;
      if (r >= 0) row.micros.push_back(took.count());
    }
  }
}

void print(const Work& work, const std::vector<Row>& rows) {
  const auto bytes = static_cast<double>(work.block_bytes * work.blocks);
  fmt::print("\n{} B x {}\n", work.block_bytes, work.blocks);
  fmt::print("  {:<40}{:>10}{:>8}{:>8}{:>8}{:>11}{:>8}\n", "row", "p50 us", "GB/s", "ratio", "nt",
             "p15 ratio", "nt");
  for (const Row& row : rows) {
    const auto against = [&](size_t reference, double share) {
      return quantile(rows[reference].micros, share) / quantile(row.micros, share);
    };
    const double p50 = quantile(row.micros, 0.5);
    fmt::print("  {:<40}{:>10.1f}{:>8.2f}{:>8.2f}{:>8.2f}{:>11.2f}{:>8.2f}\n", row.name, p50,
               bytes / p50 / 1e3, against(0, 0.5), against(1, 0.5), against(0, 0.15),
               against(1, 0.15));
  }
}

int run(int repetitions, int core, bool collapse) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<size_t>(core), &cores);
  if (::sched_setaffinity(0, sizeof cores, &cores) != 0) stop("there is no such core");
  const Segment source = shared_region(collapse ? Effort::kRequire : Effort::kOff);
  const Segment target = shared_region(Effort::kOff);
  const Regions regions{private_huge_region(), private_huge_region(), source.bytes().data(),
                        target.bytes().data()};
  std::vector<Row> rows = make_rows(regions);
  fmt::print("source: segment of {} pages; {} repetitions, core {}\n", collapse ? "huge" : "4 KiB",
             repetitions, core);
  for (const Work& work : kWorks) {
    measure(work, repetitions, rows);
    print(work, rows);
  }
  return 0;
}

}  // namespace
}  // namespace stagelink::memory

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 21;
  const int core = argc > 2 ? std::atoi(argv[2]) : 0;
  const bool collapse = argc > 3 && std::string_view(argv[3]) == "collapse";
  if (repetitions < 1 || core < 0) {
    fmt::print(stderr, "usage: copy_kernel_bench [REPS] [CORE] [collapse]\n");
    return 2;
  }
  return stagelink::memory::run(repetitions, core, collapse);
}
