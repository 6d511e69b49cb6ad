#include <algorithm>
#include <chrono>
#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/text.h"
#include "cli/bench/rig/percentile.h"
#include "cli/bench/rig/process_load.h"
#include "cli/store/store_commands.h"
#include "memory/memory_room.h"
#include "stagelink/object_store.h"

namespace stagelink::cli {
namespace {

struct StoreBenchArguments {
  std::string sizes = "1KiB,64KiB,1MiB,16MiB";
  uint32_t count = 200;
};

struct StoreFigures {
  uint64_t bytes = 0;
  double put_us = 0;
  double get_us = 0;
};

Result<std::vector<uint64_t>> sizes_of(const std::string& text) {
  std::vector<uint64_t> sizes;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    SL_ASSIGN(const uint64_t size, parse_bytes(text.substr(begin, comma - begin)));
    sizes.push_back(size);
    begin = comma + 1;
  }
  return sizes;
}

Result<StoreFigures> measure_size(ObjectStore& store, uint64_t bytes, uint32_t count) {
  const std::vector<std::byte> from(bytes, std::byte{1});
  const std::string key = fmt::format("stagelink-bench-{}-{}", ::getpid(), bytes);
  std::vector<double> put_us;
  std::vector<double> get_us;
  for (uint32_t i = 0; i < count; ++i) {
    const double start = bench::now_us();
    SL_TRY(store.put(key, from).status());
    const double between = bench::now_us();
    SL_TRY(store.get(key, std::chrono::seconds(5)).status());
    get_us.push_back(bench::now_us() - between);
    put_us.push_back(between - start);
    SL_TRY(store.erase(key));
  }
  return StoreFigures{bytes, bench::percentile(std::move(put_us), 0.5),
                      bench::percentile(std::move(get_us), 0.5)};
}

Result<std::vector<StoreFigures>> measure_store(const StoreArguments& arguments,
                                                const StoreBenchArguments& bench) {
  SL_ASSIGN(const std::vector<uint64_t> sizes, sizes_of(bench.sizes));
  SL_ASSIGN(StoreOptions options, store_options_of(arguments, /*only_existing=*/false));
  if (options.backend == StoreBackend::kShm && arguments.name.empty()) {
    options.arena.name = fmt::format("bench-{}", ::getpid());  // Not in anybody's way.
    options.arena.capacity = 4 * *std::max_element(sizes.begin(), sizes.end()) + (1 << 20);
  }
  SL_ASSIGN(const auto store, ObjectStore::open(options));
  std::vector<StoreFigures> figures;
  for (const uint64_t bytes : sizes) {
    SL_ASSIGN(const StoreFigures row, measure_size(*store, bytes, bench.count));
    figures.push_back(row);
  }
  SL_TRY(store->close());
  return figures;
}

int run_store_bench(const StoreArguments& arguments, const StoreBenchArguments& bench) {
  auto figures = measure_store(arguments, bench);
  if (!figures.ok()) return store_failure(figures.status());
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  std::string table =
      fmt::format("{:>12} {:>12} {:>12} {:>12}\n", "object", "put us", "get us", "put GiB/s");
  for (const StoreFigures& row : *figures) {
    const double gib_s = static_cast<double>(row.bytes) / row.put_us * 1e6 / (1 << 30);
    rows.push_back({{"bytes", row.bytes}, {"put_us", row.put_us}, {"get_us", row.get_us}});
    table += fmt::format("{:>12} {:>12.2f} {:>12.2f} {:>12.2f}\n",
                         memory::readable_bytes(row.bytes), row.put_us, row.get_us, gib_s);
  }
  fmt::print("{}", arguments.json ? rows.dump(2) + "\n" : table);
  return kExitOk;
}

}  // namespace

void add_store_bench(CLI::App& store, int& exit_code) {
  CLI::App* const command =
      store.add_subcommand("bench", "What a put and a get cost here: medians, one process");
  const auto arguments = add_store_arguments(*command);
  const auto bench = std::make_shared<StoreBenchArguments>();
  command->add_option("--sizes", bench->sizes, "Of the objects")->capture_default_str();
  command->add_option("--count", bench->count, "Puts and gets of each size")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000));
  command->add_flag("--json", arguments->json, "Print a JSON list");
  command->footer(
      "With --name or another backend it measures that store; else an arena of its own, which goes "
      "with it.\nFigures against targets: stagelink bench suite store\n");
  command->callback(
      [arguments, bench, &exit_code] { exit_code = run_store_bench(*arguments, *bench); });
}

}  // namespace stagelink::cli
