// Engines with a secret (option secret_file): who gets in, and what is told to whoever does not.

#include <algorithm>
#include <fstream>

#include <sys/stat.h>

#include "integration/attack/forged_peer.h"
#include "integration/support/engine_test.h"
#include "integration/support/secret_files.h"
#include "wire/auth.h"
#include "wire/frame.h"

namespace stagelink::test {
namespace {

constexpr std::string_view kSecret = "a secret of this test, not random at all";
constexpr uint64_t kBytes = 1 << 20;

wire::AuthKey right_key() { return must(wire::AuthKey::derive(std::as_bytes(std::span(kSecret)))); }

class SecretPathTest : public PathTest {
 protected:
  EngineOptions with_secret(EngineOptions options, std::string_view secret = kSecret) const {
    options.secret_file = files_.write("secret-of-" + options.name, secret);
    return options;
  }

 private:
  SecretFiles files_;
};
INSTANTIATE_TEST_SUITE_P(Paths, SecretPathTest,
                         ::testing::Values(Path::kShm, Path::kUnix, Path::kTcp), path_name);

TEST_P(SecretPathTest, PeersWithOneSecretReadWriteAndNotify) {
  Link link(with_secret(reader_options("reader")), with_secret(options("owner")), path(), kBytes);
  link.owner.fill(link.remote, seed());
  ASSERT_OK(must(link.session.read(whole(kBytes))).wait(10s));
  EXPECT_EQ(first_wrong(link.memory.bytes(), seed()), std::nullopt);
  fill_pattern(link.memory.bytes(), seed() + 1);
  ASSERT_OK(must(link.session.write(whole(kBytes))).wait(10s));
  EXPECT_EQ(link.owner.first_wrong(link.remote, seed() + 1), kNone);
  ASSERT_OK(link.peer.notify(bytes_of("done")));
  const auto notes = link.owner.take(5s, 1);
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_EQ(text_of(notes[0].payload), "done");
}

TEST_P(SecretPathTest, AnotherSecretIsRefusedCountedAndLoggedOnBothSides) {
  OwnerProcess owner(with_secret(options("owner"), "the secret of somebody else, 32 bytes"));
  // A name of its own: lines that other tests of this process have made again and again are held
  // back.
  const auto reader =
      must(Engine::create(with_secret(reader_options("stranger-" + transport_of(path())))));
  ::testing::internal::CaptureStderr();
  EXPECT_REASON(Reason::kAuthentication, reader->connect(owner.descriptor()).status());
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(metric(*reader, "failures_total", "authentication"), 1);
  EXPECT_NE(log.find("authentication (permission)"), std::string::npos) << log;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  // The owner's thread counts one after the other.
  EXPECT_TRUE(
      eventually([&] { return metric_in(owner.metrics_text(), "handshakes_refused_total") == 1; }));
  EXPECT_TRUE(eventually([&] { return metric_in(owner.metrics_text(), "inbound_peers") == 0; }));
  EXPECT_EQ(metric_in(owner.metrics_text(), "failures_total", "authentication"), 1);
}

TEST_P(SecretPathTest, ASideWithoutASecretIsRefusedByTheSideThatHasOne) {
  OwnerProcess with(with_secret(options("with")));
  OwnerProcess without(options("without"));
  const auto plain = must(Engine::create(reader_options("plain")));
  const auto secret = must(Engine::create(with_secret(reader_options("secret"))));
  EXPECT_REASON(Reason::kAuthentication, plain->connect(with.descriptor()).status());
  EXPECT_REASON(Reason::kAuthentication, plain->connect(with.address()).status());
  EXPECT_REASON(Reason::kAuthentication, secret->connect(without.descriptor()).status());
  EXPECT_REASON(Reason::kAuthentication, secret->connect(without.address()).status());
  EXPECT_OK(plain->connect(without.descriptor()).status());
  EXPECT_OK(secret->connect(with.descriptor()).status());
  for (OwnerProcess* owner : {&with, &without}) {
    EXPECT_TRUE(eventually(
        [&] { return metric_in(owner->metrics_text(), "failures_total", "authentication") == 2; }));
  }
}

class SecretTest : public EngineTest {
 protected:
  std::string secret_file(std::string_view text = kSecret) const {
    return files_.write("secret-" + std::to_string(text.size()), text);
  }
  std::unique_ptr<Engine> make_victim() const {
    EngineOptions victim = options("the-victim");
    victim.secret_file = secret_file();
    return must(Engine::create(victim));
  }

 private:
  SecretFiles files_;
};

TEST_F(SecretTest, NothingThatAnEngineShowsHoldsTheSecret) {
  ::testing::internal::CaptureStderr();
  const auto first = make_victim();
  const auto second = make_victim();
  ASSERT_OK(first->connect(second->descriptor()).status());
  EngineOptions wrong = options("wrong");
  wrong.secret_file = secret_file("the secret of somebody else, 32 bytes");
  const auto third = must(Engine::create(wrong));
  EXPECT_FALSE(third->connect(second->descriptor()).ok());
  std::string shown = ::testing::internal::GetCapturedStderr();
  shown += first->metrics_text() + text_of(first->descriptor());
  for (const char* file : {"/proc/self/cmdline", "/proc/self/environ"}) {
    std::ifstream in(file);
    shown.append(std::istreambuf_iterator<char>(in), {});
  }
  EXPECT_EQ(shown.find(kSecret), std::string::npos);
  EXPECT_EQ(shown.find("somebody else"), std::string::npos);
}

TEST_F(SecretTest, AFileThatOthersMayReadIsNoSecret) {
  EngineOptions options = this->options("careless");
  options.secret_file = secret_file();
  ASSERT_EQ(::chmod(options.secret_file.c_str(), 0640), 0);
  const Status status = Engine::create(options).status();
  EXPECT_EQ(status.reason(), Reason::kPermission) << status.to_string();
  EXPECT_NE(status.message().find(options.secret_file), std::string_view::npos);
  EXPECT_NE(status.message().find("mode 0640"), std::string_view::npos);
}

TEST_F(SecretTest, CmaIsOffWithASecret) {
  const auto owner = make_victim();
  EngineOptions options = this->options("reader");
  options.secret_file = owner->options().secret_file;
  options.transports = {"cma", "unix"};
  const auto reader = must(Engine::create(options));
  const PrivateMemory theirs(kBytes);
  const PrivateMemory ours(kBytes);
  const Region remote = must(owner->register_memory(theirs.data(), kBytes));
  const Region local = must(reader->register_memory(ours.data(), kBytes));
  Peer peer = must(reader->connect(owner->descriptor()));
  const std::array<const Region*, 1> own = {&local};
  const std::array<RegionDesc, 1> descs = {remote.descriptor()};
  const Session session = must(peer.session(own, descs));
  EXPECT_NE(session.explain().find("unix"), std::string::npos) << session.explain();
  EXPECT_NE(session.explain().find("cma is off with a secret"), std::string::npos)
      << session.explain();
}

// Somebody who has no secret, on both sockets of an engine that has one.
class NoSecretTest : public SecretTest, public ::testing::WithParamInterface<bool /* tcp */> {
 protected:
  void SetUp() override {
    SecretTest::SetUp();
    victim = make_victim();
  }
  void TearDown() override {
    victim.reset();
    SecretTest::TearDown();
  }
  UniqueFd dial(const ForgedPeer& peer) const {
    return GetParam() ? peer.dial_tcp() : peer.dial_unix();
  }
  // How the victim ends a handshake; it must hang up, and tell nothing of itself.
  Reason refusal(int fd, transport::ReceivedFrame answer) const {
    EXPECT_EQ(answer.header.type, wire::FrameType::kRefuse);
    EXPECT_TRUE(answer.fds.empty());
    const std::string told = text_of(answer.payload);
    EXPECT_EQ(told.find("the-victim"), std::string::npos);
    EXPECT_EQ(told.find(runtime_dir()), std::string::npos);
    EXPECT_TRUE(hangs_up(fd));
    return must(wire::decode_outcome(answer.payload)).reason;
  }
  Reason answer_to_proof(int fd, const wire::Proof& proof) const {
    (void)transport::send_frame(fd, wire::FrameType::kProof, 0, wire::encode_proof(proof),
                                Deadline::in(5s));
    return refusal(fd, must(transport::receive_frame(fd, Deadline::in(5s))));
  }
  wire::Challenge challenge_of(const ForgedPeer& peer, int fd, wire::Role role) const {
    auto answer = peer.greet(fd, role);
    EXPECT_TRUE(answer.has_value());
    EXPECT_EQ(answer->header.type, wire::FrameType::kChallenge);
    EXPECT_TRUE(answer->fds.empty());
    return must(wire::decode_challenge(answer->payload));
  }

  std::unique_ptr<Engine> victim;
};
INSTANTIATE_TEST_SUITE_P(Sockets, NoSecretTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Tcp" : "Unix"; });
constexpr wire::Role kRoles[] = {wire::Role::kControl, wire::Role::kData, wire::Role::kProbe};

TEST_P(NoSecretTest, EveryHelloIsRefused) {
  const ForgedPeer forged(*victim);
  int refused = 0;
  for (const wire::Role role : kRoles) {
    const UniqueFd fd = dial(forged);
    EXPECT_EQ(refusal(fd.get(), *forged.greet(fd.get(), role)), Reason::kAuthentication);
    EXPECT_EQ(metric(*victim, "failures_total", "authentication"), ++refused);
    EXPECT_EQ(metric(*victim, "handshakes_refused_total"), refused);
  }
}

TEST_P(NoSecretTest, AGuessedProofIsRefused) {
  ForgedPeer forged(*victim);
  forged.pretend_a_secret();
  for (const wire::Role role : kRoles) {
    const UniqueFd fd = dial(forged);
    (void)challenge_of(forged, fd.get(), role);
    EXPECT_EQ(answer_to_proof(fd.get(), wire::Proof{}), Reason::kAuthentication);
  }
}

TEST_P(NoSecretTest, TheOwnersProofSentBackIsRefused) {
  ForgedPeer forged(*victim);
  forged.pretend_a_secret();
  const UniqueFd fd = dial(forged);
  const auto challenge = challenge_of(forged, fd.get(), wire::Role::kControl);
  EXPECT_EQ(answer_to_proof(fd.get(), challenge.proof), Reason::kAuthentication);
}

TEST_P(NoSecretTest, ARecordedHandshakeIsRefused) {
  ForgedPeer recorded(*victim);
  recorded.pretend_a_secret();
  const auto hello = recorded.hello(wire::Role::kProbe);
  UniqueFd first = dial(recorded);
  const auto challenge = challenge_of(recorded, first.get(), wire::Role::kProbe);
  const auto proof = right_key().prove(wire::Side::kInitiator, hello, challenge.nonce);
  ASSERT_OK(transport::send_frame(first.get(), wire::FrameType::kProof, 0,
                                  wire::encode_proof(proof), Deadline::in(5s)));
  if (GetParam()) {  // The right proof opens the door: what follows fails for no other reason.
    ASSERT_EQ(must(transport::receive_frame(first.get(), Deadline::in(5s))).header.type,
              wire::FrameType::kWelcome);
  }
  const UniqueFd second = dial(recorded);
  (void)challenge_of(recorded, second.get(), wire::Role::kProbe);
  EXPECT_EQ(answer_to_proof(second.get(), proof), Reason::kAuthentication);
}

TEST_P(NoSecretTest, AHelloChangedOnItsWayIsRefused) {
  ForgedPeer honest(*victim);
  honest.pretend_a_secret();
  const UniqueFd fd = dial(honest);
  // The victim hears of a control connection; the honest side proves a hello that asked for a
  // probe.
  const auto challenge = challenge_of(honest, fd.get(), wire::Role::kControl);
  const auto proof =
      right_key().prove(wire::Side::kInitiator, honest.hello(wire::Role::kProbe), challenge.nonce);
  EXPECT_EQ(answer_to_proof(fd.get(), proof), Reason::kAuthentication);
}

TEST_P(NoSecretTest, WhoeverNeverProvesIsDismissedInTime) {
  EngineOptions hasty = options("hasty");
  hasty.secret_file = victim->options().secret_file;
  hasty.connect_timeout = 2s;
  victim = must(Engine::create(hasty));
  ForgedPeer forged(*victim);
  forged.pretend_a_secret();
  const UniqueFd fd = dial(forged);
  (void)challenge_of(forged, fd.get(), wire::Role::kControl);
  EXPECT_TRUE(hangs_up(fd.get()));
  EXPECT_EQ(metric(*victim, "failures_total", "connect_timeout"), 1);
}

}  // namespace
}  // namespace stagelink::test
