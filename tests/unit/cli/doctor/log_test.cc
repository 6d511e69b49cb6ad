#include "cli/doctor/log/scan.h"
#include "unit/cli/doctor/tree.h"

namespace stagelink::cli::doctor {
namespace {

std::vector<Finding> scanned(std::string_view text) {
  LogScan scan;
  scan.take(text);
  scan.finish();
  return scan.findings();
}

TEST(DoctorLogTest, EverySymptomOfTheTableIsRecognised) {
  const std::pair<const char*, const char*> lines[] = {
      {"RuntimeError: IPv4 device IP not found for device 3", "npu_no_ipv4"},
      {"Get ipconf failed, because no ip was preset there!", "npu_no_ipv4"},
      {"link status: DOWN", "npu_link_down"},
      {"net health status: Receive timeout", "npu_unhealthy"},
      {"3 packets transmitted, 0 received, 100.00% packet loss", "npu_ping_lost"},
      {"3 packets transmitted, 2 received, 10.00% packet loss", "npu_ping_lost"},
      {"P2PCommInitRootInfo failed, ret=4", "ascend_setup"},
      {"[HCCP] ra init failed(128008)", "ascend_setup"},
      {"error: RA_QP_STATUS_TIMEOUT", "ascend_setup"},
      {"runtime result = 507035, fftsplus sdma error", "ascend_runtime"},
      {"rtStreamSynchronize: context is abort", "ascend_runtime"},
      {"WARNING transfer_engine get failed for k@0_1: -1", "pull_failed"},
      {"ValueError: YuanrongTransferEngineConnector requires an NPU memory pool. Got 'cpu'",
       "npu_pool"},
      {"ModuleNotFoundError: No module named 'yr.datasystem'", "package_missing"},
      {"ERROR transfer_engine put failed for k@0_1: x", "put_failed"},
      {"MemoryError: no free block of 4096 bytes", "pool_full"},
      {"ERROR Pool exhausted, cannot put data size 99", "pool_full"},
      {"ERROR Failed to allocate 4096 bytes in receive pool", "pool_full"},
      {"ERROR Failed to allocate/register transfer_engine pool: x", "pool_full"},
      {"torch.OutOfMemoryError: NPU out of memory.", "pool_full"},
      {"OSError: [Errno 98] Address already in use", "port_in_use"},
      {"ERROR ZMQ bind failed on 10.0.0.5:50051: x", "port_in_use"},
      {"Bus error (core dumped)", "shm_small"},
      {"OSError: [Errno 24] Too many open files", "nofile"},
  };
  for (const auto& [line, cause] : lines) {
    const Finding finding = with_cause(scanned(std::string("fine\n") + line + "\nfine\n"), cause);
    EXPECT_EQ(finding.level, Level::kError);
    EXPECT_TRUE(contains(finding.what, "once, line 2: ")) << finding.what;
    EXPECT_TRUE(contains(finding.what, line));
    EXPECT_FALSE(finding.why.empty() || finding.action.empty());
  }
  EXPECT_EQ(scanned("INFO all good\n").front().level, Level::kOk);
}

TEST(DoctorLogTest, WhatTheToolsOfAHealthyMachinePrintIsNoSymptom) {
  const auto findings = scanned(
      "ipaddr:10.86.1.80\nlink status: UP\nnet health status: Success\n"
      "3 packets transmitted, 3 received, 0.00% packet loss\n"
      "3 packets transmitted, 3 received, 0% packet loss, time 2ms\n");
  EXPECT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings.front().level, Level::kOk) << findings.front().what;
}

TEST(DoctorLogTest, TheLinesOfAGoodRunAreCounted) {
  const auto findings = scanned(
      "[YR GET] k@0_1: 4 KiB (fast_path, zero-copy)\n"
      "Successfully received KV cache for r1, across 1 key(s)\nApplied CFG KV caches\n"
      "[KV Reuse] r1\nApplied CFG KV caches\n");
  ASSERT_EQ(findings.size(), 3U);
  EXPECT_EQ(findings[0].what, "`Successfully received KV cache`: once, line 2");
  EXPECT_EQ(findings[1].what, "`Applied CFG KV caches`: 2 times, lines 3, 5");
  EXPECT_EQ(findings[2].what, "`[KV Reuse]`: once, line 4");
}

TEST(DoctorLogTest, LinesAreCountedAndTheFirstOnesNamed) {
  std::string text;
  for (int line = 1; line <= 20; ++line) text += line % 2 == 0 ? "ra init failed\n" : "\n";
  const Finding finding = with_cause(scanned(text), "ascend_setup");
  EXPECT_TRUE(contains(finding.what, "10 times, lines 2, 4, 6, 8, 10 and on")) << finding.what;
}

TEST(DoctorLogTest, PiecesMayEndAnywhere) {
  const std::string text = "one\r\ntwo IPv4 device IP not found\r\nlast: context is abort";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    LogScan scan;
    scan.take(std::string_view(text).substr(0, cut));
    scan.take(std::string_view(text).substr(cut));
    scan.finish();
    EXPECT_EQ(scan.lines(), 3U);
    EXPECT_TRUE(contains(with_cause(scan.findings(), "npu_no_ipv4").what, "line 2")) << cut;
    EXPECT_TRUE(contains(with_cause(scan.findings(), "ascend_runtime").what, "line 3")) << cut;
  }
}

TEST(DoctorLogTest, ALineWithoutEndCostsBoundedMemory) {
  const std::string filler(LogScan::kMaxLineBytes, 'x');
  for (const bool in_one_piece : {true, false}) {
    LogScan scan;
    if (in_one_piece) {
      scan.take(filler + "context is abort\ncontext is abort\n");
    } else {
      scan.take(filler.substr(1));
      scan.take("yz");
      scan.take("context is abort");
      scan.take("\ncontext is abort\n");
    }
    EXPECT_EQ(scan.lines(), 2U);
    EXPECT_TRUE(contains(with_cause(scan.findings(), "ascend_runtime").what, "once, line 2"));
  }
}

TEST(DoctorLogTest, OurOwnLinesAreReadByTheirReason) {
  const std::string head = "2026-01-02T03:04:05.678Z error ";
  EXPECT_EQ(reason_in(head + "[peer decode-0] refused (unreachable): connect to 1.2.3.4:5"),
            Reason::kRefused);
  EXPECT_EQ(reason_in(head + "[[decode-0] hello] version (incompatible): hello speaks 2.0"),
            Reason::kVersion);
  EXPECT_EQ(reason_in(head + "[store] timed_out: 3 s have passed"), Reason::kTimedOut);
  EXPECT_EQ(reason_in("12:00 [x] refused (unreachable): not a line of ours"), std::nullopt);
  EXPECT_EQ(reason_in(head + "[x] refused (corrupt): no such pair"), std::nullopt);
  EXPECT_EQ(reason_in(head + "[x] refused"), std::nullopt);
  EXPECT_EQ(reason_in(head + "[x] "), std::nullopt);
  const Finding finding =
      with_cause(scanned(head + "[peer] port_in_use (already_exists): 5000\n"), "port_in_use");
  EXPECT_EQ(finding.level, Level::kWarning);
  EXPECT_TRUE(contains(finding.action, "doctor CONFIG")) << finding.action;
}

TEST(DoctorLogTest, ASenderWhosePayloadsNobodyReadsIsNoticedAcrossLogs) {
  const Tree tree;
  const auto pulls = [](const std::vector<std::string>& files) {
    auto sections = scan_logs(files, [](uint64_t, uint64_t) {});
    EXPECT_TRUE(sections.ok());
    return sections->back().findings;
  };
  const std::string sender = tree.write("sender.log", "KV transfer OK: a\nKV transfer OK: b\n");
  const std::string failed = tree.write("failed.log", "transfer_engine get failed for a: x\n");
  const std::string good = tree.write("good.log", "[YR GET] a: total=1ms (fast_path, zero-copy)\n");
  EXPECT_TRUE(contains(with_cause(pulls({sender}), "never_pulled").action, "--log RECEIVER"));
  EXPECT_EQ(with_cause(pulls({sender}), "never_pulled").level, Level::kWarning);
  EXPECT_TRUE(contains(with_cause(pulls({sender, failed}), "never_pulled").what, "2 times"));
  EXPECT_EQ(with_cause(pulls({sender, failed}), "never_pulled").level, Level::kError);
  EXPECT_EQ(pulls({sender, good}).front().level, Level::kOk);
  EXPECT_TRUE(pulls({failed}).empty());
  EXPECT_EQ(scan_logs({tree.path("none")}, [](uint64_t, uint64_t) {}).status().reason(),
            Reason::kNotFound);
}

}  // namespace
}  // namespace stagelink::cli::doctor
