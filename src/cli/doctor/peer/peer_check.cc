#include "cli/doctor/peer/peer_check.h"

#include <memory>
#include <optional>

#include <fmt/format.h>

#include "base/secret_file.h"
#include "cli/doctor/peer/pull_probe.h"
#include "cli/doctor/peer/throughput.h"
#include "stagelink/version.h"

namespace stagelink::cli::doctor {
namespace {

std::string duration_text(Duration duration) {
  const double micros = std::chrono::duration<double, std::micro>(duration).count();
  return micros < 1000 ? fmt::format("{:.0f} us", micros) : fmt::format("{:.1f} ms", micros / 1000);
}

std::string rate_text(const Throughput& measured) {
  const double seconds = std::chrono::duration<double>(measured.time).count();
  const double mib = static_cast<double>(measured.bytes) / (1 << 20);
  return fmt::format("{:.0f} MiB/s (read of {:.0f} MiB in {:.2f} s over {})", mib / seconds, mib,
                     seconds, measured.route);
}

std::string version_text(const wire::Version& version) {
  return fmt::format("{}.{}", version.major, version.minor);
}

// What was typed needs no further name.
std::string name_of(const PeerPlace& place) {
  const std::string address = place.endpoint.to_string();
  return place.who == "--peer" ? address : fmt::format("{}, {}", place.who, address);
}

// What one peer's facts mean.
class PeerJudge {
 public:
  PeerJudge(const HostView& host, const PeerPlace& place, const PeerFacts& facts)
      : host_(host), facts_(facts), place_(place), who_(name_of(place)) {}

  std::vector<Finding> run() {
    if (!facts_.connected.ok()) {
      judge_failure();
      return std::move(out_);
    }
    out_.push_back(fine(fmt::format("{}: connected in {}, from {}", who_,
                                    duration_text(facts_.connect_time), facts_.local)));
    judge_mtu();
    switch (facts_.answer) {
      case Answer::kEngine: judge_engine(); break;
      case Answer::kZmq: judge_zmq(); break;
      case Answer::kOther: judge_other(); break;
      case Answer::kSilent: judge_silence(); break;
      case Answer::kUntried: break;
    }
    return std::move(out_);
  }

 private:
  void error(std::string cause, std::string what, std::string why, std::string action) {
    out_.push_back({Level::kError, std::move(cause), who_ + ": " + std::move(what), std::move(why),
                    std::move(action)});
  }

  void judge_failure() {
    const std::string said(facts_.connected.message());
    if (facts_.connected.reason() == Reason::kRefused) {
      return error("peer_refused", "nobody listens there (" + said + ")",
                   "The host answers, but no process has that port.",
                   "Is the peer running, and is this the address it advertises (its log, "
                   "`stagelink stat` there)? Does it bind 127.0.0.1 alone?");
    }
    if (facts_.connected.code() == Code::kTimedOut) {
      return error("peer_silent", "no answer (" + said + ")",
                   "Packets go there and none comes back.",
                   "A wrong address, a host that is down, or a firewall that drops packets: open "
                   "the port there, and look at the route (ip route get).");
    }
    if (said.find("is not known") != std::string::npos) {
      return error("peer_unknown", said, "A name without an address reaches nobody.",
                   "Correct the name, or DNS or /etc/hosts.");
    }
    error("peer_unreachable", said, "There is no way to that address from here.",
          "Look at addresses and routes: ip addr, ip route get. IPv6 alone on one side?");
  }

  // The MTU of the interface that the connection leaves by.
  int interface_mtu() const {
    for (const LocalAddress& local : host_.addresses) {
      const bool ours = facts_.local.starts_with(local.address + ":") ||
                        facts_.local.starts_with("[" + local.address + "]");
      if (!ours) continue;
      const auto mtu = read_number(host_.sys + "/class/net/" + local.interface + "/mtu");
      return static_cast<int>(mtu.value_or(0));
    }
    return 0;
  }

  void judge_mtu() {
    constexpr int kSmallest = 1280;  // What IPv6 demands of every link.
    if (facts_.path_mtu == 0) return;
    if (facts_.path_mtu < kSmallest) {
      out_.push_back({Level::kWarning, "mtu_small",
                      fmt::format("{}: the path takes packets of {} bytes", who_, facts_.path_mtu),
                      "Throughput suffers, and tunnels that cut packets lose some.",
                      "Raise the MTU of the tunnel or of the overlay network."});
      return;
    }
    const int own = interface_mtu();
    // Some kernels take one off for loopback.
    if (own > facts_.path_mtu + 1) {
      out_.push_back(note("mtu_path",
                          fmt::format("{}: the path takes packets of {} bytes, the "
                                      "interface here of {}",
                                      who_, facts_.path_mtu, own),
                          "For large packets all the way, set one MTU on all hosts and switches."));
      return;
    }
    out_.push_back(fine(
        fmt::format("{}: packets of {} bytes, as far as this host knows", who_, facts_.path_mtu)));
  }

  void judge_engine() {
    if (place_.speaks == Speaks::kZmq) {
      return error("peer_other", "an engine answers where ZeroMQ is expected",
                   "The connector's messages go to the ZeroMQ port.",
                   "Name the port of the peer's connector (zmq_port), not that of its engine.");
    }
    if (!facts_.greeted.ok()) return judge_refusal();
    const std::string name = facts_.welcome.has_value() ? facts_.welcome->name : "";
    const bool partner = partner_memory(name).has_value();
    out_.push_back(fine(fmt::format(
        "{}: {}, process {}, protocol {}{}", who_, partner ? "a doctor" : "engine " + name,
        facts_.welcome.has_value() ? facts_.welcome->pid : 0,
        version_text(facts_.version.value_or(wire::Version{})),
        facts_.round_trip > Duration::zero() ? ", round trip " + duration_text(facts_.round_trip)
                                             : ", no answer to pings")));
  }

  void judge_refusal() {
    const std::string said(facts_.greeted.message());
    switch (facts_.greeted.code()) {
      case Code::kIncompatible: return judge_version(said);
      case Code::kTimedOut:
      case Code::kPeerLost:
        return error("peer_broken", said, "It began to answer as an engine and did not finish.",
                     "Is the process stopped or ending? Try again, and look at its log.");
      default: break;
    }
    if (facts_.greeted.reason() == Reason::kAuthentication) {
      return error("peer_secret", said, "Both sides must hold the same secret.",
                   "Give both engines copies of one secret_file (here: option secret_file, or "
                   "STAGELINK_SECRET_FILE).");
    }
    error("peer_refuses", fmt::format("{}: {}", reason_name(facts_.greeted.reason()), said),
          "The engine answers and takes no data connections from here.",
          "Mend what it says: docs/operations.md has a line for each reason.");
  }

  void judge_version(const std::string& said) {
    const std::string ours =
        fmt::format("{} (stagelink {})", version_text(wire::own_version()), kVersion);
    const std::string theirs =
        facts_.version.has_value() ? version_text(*facts_.version) : "another one (" + said + ")";
    error("peer_version",
          fmt::format("the engine there speaks protocol {}, this one {}", theirs, ours),
          "Engines whose protocols differ in the first number, or by more than one in the second, "
          "refuse each other: incompatible (version).",
          "Install one version of Stagelink on both sides.");
  }

  void judge_zmq() {
    const ZmqGreeting& zmq = facts_.zmq;
    if (zmq.mechanism.empty()) {
      out_.push_back({Level::kWarning, "zmq_greeting",
                      who_ + ": ZeroMQ, but its greeting did not end in time",
                      "The process may be stopped or overloaded.", "Look at its log."});
      return;
    }
    const bool curve = zmq.mechanism == "CURVE";
    if (curve != place_.secret) {
      return error("peer_secret",
                   curve ? "ZeroMQ with CURVE: the peer has a secret, and this side has none"
                         : "ZeroMQ without CURVE: this side has a secret, and the peer has none",
                   "Connectors refuse each other then (authentication).",
                   "Give both sides copies of one secret_file, or neither.");
    }
    out_.push_back(fine(
        fmt::format("{}: ZeroMQ (ZMTP {}.{}, {})", who_, zmq.major, zmq.minor, zmq.mechanism)));
  }

  void judge_registry() {
    const HttpFacts& http = facts_.http;
    if (place_.speaks == Speaks::kZmq) {
      return error("peer_other", "a registry of embeddings answers where ZeroMQ is expected",
                   "Registries speak HTTP; the connector's messages go to the ZeroMQ port.",
                   "Name the port of the peer's connector (zmq_port) here, and the registry as "
                   "remote_registry_url in the options of the encoder cache.");
    }
    if (http.lookup.reason() == Reason::kAuthentication) {
      return error("peer_secret",
                   place_.secret ? "a registry of embeddings, which has another secret"
                                 : "a registry of embeddings, which asks for a secret",
                   "It refuses whoever publishes or looks up without it (401).",
                   "Give the registry (--secret-file) and its clients copies of one secret_file "
                   "(here: option secret_file, or STAGELINK_SECRET_FILE).");
    }
    if (!http.lookup.ok()) {
      return error("peer_broken",
                   "a registry of embeddings, and a lookup failed: " + http.lookup.to_string(),
                   "Consumers that ask it wait, or go without.",
                   "Look at its log, and at the /healthz and /metrics pages.");
    }
    if (http.instance.empty()) {
      out_.push_back(fine(who_ + ": a registry of embeddings (HTTP) of the original protocol"));
      return;
    }
    out_.push_back(
        fine(fmt::format("{}: a registry of embeddings (HTTP), instance {}", who_, http.instance)));
  }

  void judge_other() {
    if (place_.speaks == Speaks::kOther) return;
    if (facts_.http.registry) return judge_registry();
    if (facts_.http.status != 0) {
      return error("peer_other",
                   fmt::format("an HTTP server answers, which is no registry of embeddings (status "
                               "{}): `{}`",
                               facts_.http.status, facts_.said),
                   "Another program has that port.",
                   "Compare with the address in the peer's log; a proxy or port forward in "
                   "between?");
    }
    error("peer_other",
          facts_.said.empty()
              ? std::string("it closes the connection without a word")
              : fmt::format("what answers is no engine and no ZeroMQ: `{}`", facts_.said),
          "Another program has that port.",
          "Compare with the address in the peer's log; a proxy or port forward in between?");
  }

  void judge_silence() {
    error("peer_silent", "the connection stands, and nothing answers our hello",
          "Another program's port, a stopped process, or a middle box that accepts for it.",
          "Look whether the process there runs (state T or D in ps), and whose port it is (ss "
          "-ltnp).");
  }

  const HostView& host_;
  const PeerFacts& facts_;
  const PeerPlace& place_;
  const std::string who_;
  std::vector<Finding> out_;
};

// The engine of the configuration, as a guest: it listens where nobody minds.
EngineOptions guest_options(const EngineOptions& configured) {
  EngineOptions options = configured;
  options.name = "stagelink doctor";
  options.bind = EngineOptions().bind;
  options.interface.clear();
  options.advertise.clear();
  options.fault_seed = 0;
  return options;
}

Finding measure(const Subject& subject, const PeerPlace& place, const PeerLimits& limits) {
  const std::string who = name_of(place);
  const auto measured = measure_throughput(guest_options(subject.engine), place.endpoint,
                                           limits.measure_time, limits.measure_bytes);
  if (measured.ok()) return fine(who + ": " + rate_text(*measured));
  return {
      Level::kError, "peer_transfer",
      fmt::format("{}: a read through the engine failed: {}", who, measured.status().to_string()),
      "Transfers of a connector would fail in the same way.",
      "docs/operations.md has a line for each reason."};
}

Result<std::optional<wire::AuthKey>> key_of(const EngineOptions& options) {
  if (options.secret_file.empty()) return std::optional<wire::AuthKey>();
  SL_ASSIGN(const Secret secret, read_secret_file(options.secret_file));
  SL_ASSIGN(wire::AuthKey key, wire::AuthKey::derive(secret.bytes()));
  return std::optional<wire::AuthKey>(std::move(key));
}

}  // namespace

std::vector<Finding> judge_peer(const HostView& host, const PeerPlace& place,
                                const PeerFacts& facts) {
  return PeerJudge(host, place, facts).run();
}

std::vector<Finding> check_peers(const HostView& host, const Subject& subject,
                                 const PeerLimits& limits,
                                 const std::function<void(const std::string&)>& progress) {
  std::vector<Finding> out;
  if (subject.peers.empty()) return out;
  auto key = key_of(subject.engine);
  if (!key.ok()) {
    return {{Level::kError, "secret_file", std::string(key.status().message()),
             "Without its secret no engine starts.",
             "head -c 32 /dev/urandom into a file of mode 0600: docs/operations.md."}};
  }
  for (const PeerPlace& place : subject.peers) {
    progress("talking to " + place.endpoint.to_string());
    ProbeOptions options;
    options.timeout = limits.timeout;
    options.key = key->has_value() ? &**key : nullptr;
    options.speak = place.speaks != Speaks::kOther;
    PeerFacts facts = probe_peer(place.endpoint, options);
    if (facts.answer == Answer::kOther && facts.prompted) {
      facts.http = probe_http(place.endpoint, subject.engine.secret_file, limits.timeout);
    }
    for (Finding& finding : judge_peer(host, place, facts)) {
      out.push_back(std::move(finding));
    }
    if (facts.answer == Answer::kZmq && place.pull.has_value()) {
      out.push_back(ask_pull_sender(name_of(place), place.endpoint, *place.pull, limits.timeout));
    }
    if (facts.answer != Answer::kEngine || !facts.greeted.ok()) continue;
    if (facts.welcome.has_value() && partner_memory(facts.welcome->name).has_value()) {
      progress("reading from " + place.endpoint.to_string());
      out.push_back(measure(subject, place, limits));
    } else {
      out.push_back(note("throughput_unmeasured",
                         "Throughput was not measured: an engine at work offers no memory for it.",
                         "Run `stagelink doctor --serve` on that host, and name its address "
                         "here."));
    }
  }
  return out;
}

}  // namespace stagelink::cli::doctor
