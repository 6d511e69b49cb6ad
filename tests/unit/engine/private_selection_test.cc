// The choice between the kernel's copy and a socket for memory that is not mapped.

#include <gtest/gtest.h>

#include "transport/selection.h"

namespace stagelink::transport {
namespace {

RouteFacts private_memory() {
  RouteFacts facts;
  facts.shm_enabled = facts.cma_enabled = facts.same_host = true;
  facts.stream = TransportKind::kStream;
  facts.cma = Status();
  facts.cma_min_run = 4096;
  return facts;
}

void take_stream_away(RouteFacts& facts) { facts.stream = std::nullopt; }

TransportKind chosen(const RouteFacts& facts, uint64_t bytes, uint64_t runs) {
  return select_for_batch(select_route(facts), {bytes, runs}, facts.cma_min_run);
}

TEST(PrivateSelectionTest, MeanRunDecides) {
  const RouteFacts facts = private_memory();
  EXPECT_EQ(chosen(facts, 4096, 1), TransportKind::kCma);
  EXPECT_EQ(chosen(facts, 4095, 1), TransportKind::kStream);
  EXPECT_EQ(chosen(facts, 8192, 2), TransportKind::kCma);
  EXPECT_EQ(chosen(facts, 8191, 2), TransportKind::kStream);
  EXPECT_EQ(chosen(facts, 1 << 20, 4096), TransportKind::kStream);
  EXPECT_NE(select_route(facts).why.find("4KiB"), std::string::npos) << select_route(facts).why;
}

TEST(PrivateSelectionTest, WithoutASocketAllRunsAreCopied) {
  RouteFacts facts = private_memory();
  take_stream_away(facts);
  EXPECT_EQ(chosen(facts, 1, 1), TransportKind::kCma);
  EXPECT_EQ(select_route(facts).short_runs, std::nullopt);
}

TEST(PrivateSelectionTest, ZeroMinRunMeansAlways) {
  RouteFacts facts = private_memory();
  facts.cma_min_run = 0;
  EXPECT_EQ(chosen(facts, 1, 1), TransportKind::kCma);
}

TEST(PrivateSelectionTest, WhatStandsInTheWayIsNamedAndTheSocketServes) {
  RouteFacts facts = private_memory();
  facts.cma = Status(Reason::kPermission, "some cause");
  EXPECT_EQ(chosen(facts, 1 << 20, 1), TransportKind::kStream);
  EXPECT_NE(select_route(facts).why.find("some cause"), std::string::npos);
  facts = private_memory();
  facts.secret = true;
  EXPECT_EQ(chosen(facts, 1 << 20, 1), TransportKind::kStream);
  EXPECT_NE(select_route(facts).why.find("secret"), std::string::npos);
  facts = private_memory();
  facts.cma_enabled = false;
  EXPECT_EQ(chosen(facts, 1 << 20, 1), TransportKind::kStream);
  EXPECT_NE(select_route(facts).why.find("cma is not among"), std::string::npos);
}

TEST(PrivateSelectionTest, WithNeitherBothReasonsAreGiven) {
  RouteFacts facts = private_memory();
  facts.cma = Status(Reason::kPermission, "some cause");
  take_stream_away(facts);
  const Route route = select_route(facts);
  EXPECT_EQ(route.kind, std::nullopt);
  EXPECT_NE(route.why.find("some cause"), std::string::npos);
  EXPECT_NE(route.why.find("unix"), std::string::npos);
}

TEST(PrivateSelectionTest, MappedMemoryIsPreferredAndMemoryThatCannotBeMappedIsCopied) {
  RouteFacts facts = private_memory();
  facts.shareable = true;
  facts.mapping = Status();
  EXPECT_EQ(chosen(facts, 1 << 20, 1), TransportKind::kShm);
  EXPECT_EQ(chosen(facts, 1, 1), TransportKind::kShm);
  facts.mapping = Status(Reason::kLimit, "too much");
  EXPECT_EQ(chosen(facts, 1 << 20, 1), TransportKind::kCma);
  EXPECT_EQ(chosen(facts, 1, 1), TransportKind::kStream);
  EXPECT_NE(select_route(facts).why.find("too much"), std::string::npos);
}

TEST(PrivateSelectionTest, AnotherHostIsNeverCopiedFrom) {
  RouteFacts facts = private_memory();
  facts.same_host = false;
  const Route route = select_route(facts);
  EXPECT_NE(route.kind, TransportKind::kCma);
  EXPECT_NE(route.why.find("over TCP"), std::string::npos);
}

}  // namespace
}  // namespace stagelink::transport
