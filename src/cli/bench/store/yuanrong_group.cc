#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "cli/bench/rig/percentile.h"
#include "cli/bench/rig/process_load.h"
#include "cli/bench/store/store_groups.h"
#include "cli/bench/suite/child_output.h"
#include "stagelink/object_store.h"
#include "store/yuanrong/channel/broker_process.h"
#include "store/yuanrong/servers/local_cluster.h"

namespace stagelink::cli::bench {

namespace {

namespace yr = store::yuanrong;

constexpr const char* kYuanrongCases = "yuanrong-1m yuanrong-16m small-yuanrong";
constexpr uint16_t kBenchPort = 31591;
constexpr uint16_t kBenchMetaPort = 31593;
constexpr auto kRawTimeout = std::chrono::seconds(120);
constexpr int kTurns = 7;  // Ours and theirs one after the other: the machine's mood is common.

struct YuanrongCase {
  const char* name;
  uint64_t bytes;
  int count;  // Of each turn.
  double target;
};
constexpr std::array kSizes = {YuanrongCase{"yuanrong-1m", 1 << 20, 60, 1.15},
                               YuanrongCase{"yuanrong-16m", 16 << 20, 15, 1.05}};
constexpr uint64_t kSmallObject = 1024;
constexpr int kSmallCount = 150;
constexpr double kSmallOverYuanrong = 50;

// In the environment beside the sources; empty: where packages usually are.
std::string sdk_beside_sources(const SuiteContext& context) {
  for (const char* python : {"python3.11", "python3.10", "python3.9"}) {
    const std::string found =
        context.beside_sources(fmt::format(".venv/lib/{}/site-packages/yr/datasystem", python), "");
    if (!found.empty()) return found;
  }
  return "";
}

// Put and get, each of its own operations.
struct Samples {
  std::vector<double> put_us;
  std::vector<double> get_us;

  void add(const Samples& more) {
    put_us.insert(put_us.end(), more.put_us.begin(), more.put_us.end());
    get_us.insert(get_us.end(), more.get_us.begin(), more.get_us.end());
  }
  double sum_us() const { return percentile(put_us, 0.5) + percentile(get_us, 0.5); }
};

// A worker for the time of the group.
class BenchWorker {
 public:
  static Result<std::unique_ptr<BenchWorker>> start(const std::string& sdk) {
    YuanrongOptions wanted;
    wanted.sdk_path = sdk;
    SL_ASSIGN(const yr::BrokerFiles files, yr::find_broker_files(wanted));
    yr::LocalClusterOptions options;
    options.folder = fmt::format("/tmp/stagelink-bench-yuanrong-{}", ::getpid());
    options.port = kBenchPort;
    options.etcd_port = kBenchMetaPort;
    options.etcd = false;
    options.sdk = files.sdk;
    SL_TRY(yr::start_cluster(options, nullptr).status());
    return std::unique_ptr<BenchWorker>(new BenchWorker(files, options.folder));
  }
  ~BenchWorker() { (void)yr::stop_cluster(folder_, std::chrono::seconds(10)); }
  const yr::BrokerFiles& files() const noexcept { return files_; }

 private:
  BenchWorker(yr::BrokerFiles files, std::string folder)
      : files_(std::move(files)), folder_(std::move(folder)) {}
  yr::BrokerFiles files_;
  std::string folder_;
};

Status measure_theirs(const BenchWorker& worker, const std::string& program, uint64_t bytes,
                      int count, Samples& samples) {
  const yr::BrokerFiles& files = worker.files();
  SL_ASSIGN(const std::string text,
            run_child({program, files.sdk, files.plugin, "127.0.0.1", fmt::format("{}", kBenchPort),
                       fmt::format("{}", bytes), fmt::format("{}", count)},
                      kRawTimeout));
  const auto printed = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!printed.is_object()) return Status(Reason::kCorrupt, "yuanrong_raw printed no object");
  for (const double us : printed["put_us"]) samples.put_us.push_back(us);
  for (const double us : printed["get_us"]) samples.get_us.push_back(us);
  return {};
}

Status measure_ours(ObjectStore& store, uint64_t bytes, int count, Samples& samples) {
  const std::vector<std::byte> from(bytes, std::byte{7});
  for (int i = 0; i < count; ++i) {
    const std::string key = fmt::format("ours:{}_{}", ::getpid(), i);
    const double begin_us = now_us();
    SL_TRY(store.put(key, from).status());
    const double between_us = now_us();
    {
      SL_ASSIGN(const ObjectView view, store.get(key));
      samples.get_us.push_back(now_us() - between_us);
      if (view.bytes().size() != bytes) return Status(Reason::kCorrupt, "not what was put");
    }
    samples.put_us.push_back(between_us - begin_us);
    SL_TRY(store.erase(key));
  }
  return {};
}

// What was left of the suite's row `small` before: what the arena takes.
void compare_small(SuiteContext& context, const Samples& theirs) {
  for (const CaseResult& row : context.rows()) {
    if (row.name != "small") continue;
    context.add({.name = "small-yuanrong",
                 .value = theirs.sum_us() / row.value,
                 .unit = "x",
                 .goal = Goal::kAtLeast,
                 .target = kSmallOverYuanrong});
    return;
  }
  SuiteContext::leave_out("small-yuanrong", "the group small was not measured in this run");
}

Status measure_all(SuiteContext& context, const BenchWorker& worker, const std::string& program) {
  StoreOptions options;
  options.backend = StoreBackend::kYuanrong;
  options.yuanrong.port = kBenchPort;
  options.yuanrong.sdk_path = worker.files().sdk;
  SL_ASSIGN(const auto store, ObjectStore::open(options));
  for (const YuanrongCase& wanted : kSizes) {
    Samples ours;
    Samples theirs;
    std::vector<double> ratios;
    for (int turn = 0; turn < kTurns; ++turn) {
      Samples our_turn;
      Samples their_turn;
      SL_TRY(measure_theirs(worker, program, wanted.bytes, wanted.count, their_turn));
      SL_TRY(measure_ours(*store, wanted.bytes, wanted.count, our_turn));
      ratios.push_back(our_turn.sum_us() / their_turn.sum_us());
      ours.add(our_turn);
      theirs.add(their_turn);
    }
    fmt::print(stderr, "{}: put {:.0f} us and get {:.0f} us, alone {:.0f} us and {:.0f} us\n",
               wanted.name, percentile(ours.put_us, 0.5), percentile(ours.get_us, 0.5),
               percentile(theirs.put_us, 0.5), percentile(theirs.get_us, 0.5));
    context.add({.name = wanted.name,
                 .value = percentile(std::move(ratios), 0.5),
                 .unit = "x",
                 .goal = Goal::kAtMost,
                 .target = wanted.target});
  }
  Samples theirs;
  SL_TRY(measure_theirs(worker, program, kSmallObject, kSmallCount, theirs));
  compare_small(context, theirs);
  return {};
}

}  // namespace

Status run_store_yuanrong_group(SuiteContext& context) {
  const std::string program =
      (std::filesystem::path(context.exe()).parent_path() / "yuanrong_raw").string();
  if (::access(program.c_str(), X_OK) != 0) {
    SuiteContext::leave_out(kYuanrongCases, program + " is not built (STAGELINK_BENCH)");
    return {};
  }
  auto worker = BenchWorker::start(sdk_beside_sources(context));
  if (!worker.ok()) {
    SuiteContext::leave_out(kYuanrongCases, worker.status().message());
    return {};
  }
  return measure_all(context, **worker, program);
}

}  // namespace stagelink::cli::bench
