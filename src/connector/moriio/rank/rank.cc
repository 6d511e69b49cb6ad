#include "connector/moriio/rank/rank.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "connector/block_layout/block_plan.h"
#include "connector/moriio/ports.h"

namespace stagelink::moriio {
namespace {

// How long a message to a peer may take to be handed over.
constexpr Duration kNotifyTimeout = std::chrono::seconds(5);
constexpr size_t kMaxWanted = 256;
constexpr size_t kMaxChunks = 65536;

WrapperOptions wrapper_options(const RankOptions& options) {
  WrapperOptions made;
  made.table.role = options.role;
  made.table.tp_size = options.place.tp_size;
  made.zmq_library = options.zmq_library;
  made.secret_file = options.secret_file;
  made.notify_timeout = kNotifyTimeout;
  return made;
}

Status unknown(const std::string& transfer_id) {
  return {Reason::kNotFound, "transfer " + transfer_id + " is not known"};
}

// Messages that carry the token, if there is one.
Expectation believe(const std::string& token) {
  Expectation expectation;
  expectation.token = token;
  expectation.token_required = !token.empty();
  return expectation;
}

// The task that comes before all layers, and moves nothing.
constexpr std::string_view kBegin = "begin";

// The task of one layer of one chunk, as the writer keeps it: "chunk/layer".
std::string task_name(uint32_t chunk, uint32_t layer) { return fmt::format("{}/{}", chunk, layer); }

struct TaskPlace {
  uint32_t chunk = 0;
  uint32_t layer = 0;
};

TaskPlace place_of(const std::string& task) {
  TaskPlace place;
  const char* const end = task.data() + task.size();
  const char* const slash = std::from_chars(task.data(), end, place.chunk).ptr;
  if (slash != end) std::from_chars(slash + 1, end, place.layer);
  return place;
}

}  // namespace

Rank::Rank(const RankOptions& options, std::shared_ptr<IoEngine> engine)
    : options_(options),
      engine_(std::move(engine)),
      wrapper_(std::make_shared<Wrapper>(wrapper_options(options))) {
  ReaderOptions reader;
  reader.tp_rank = options.place.tp_rank;
  reader.tp_size = options.place.tp_size;
  reader.transfer_timeout = options.transfer_timeout;
  reader_ = std::make_unique<Reader>(reader, wrapper_);
  WriterOptions writer;
  writer.tp_rank = options.place.tp_rank;
  writer.tp_size = options.place.tp_size;
  writer.transfer_timeout = options.transfer_timeout;
  writer.defer_timeout = options.defer_timeout;
  // The writer is closed before this object goes.
  writer_ = std::make_unique<Writer>(writer, wrapper_,
                                     std::shared_ptr<WriterHost>(std::shared_ptr<void>(), this));
}

Rank::~Rank() { close(); }

void Rank::close() {
  writer_->close();
  reader_->close();
  wrapper_->close();
  MutexLock lock(mutex_);
  links_.clear();
  sources_.clear();
}

Status Rank::serve(RankCache cache) {
  const RankAddress rank{options_.dp_local, options_.place.tp_rank, options_.place.tp_size};
  SL_ASSIGN(const uint16_t handshake, rank_port(options_.handshake_port, rank));
  SL_ASSIGN(const uint16_t notify, rank_port(options_.notify_port, rank));
  SL_ASSIGN(const PeerMetadata metadata,
            metadata_of(cache, engine_->engine_desc().pack(), wrapper_->incarnation()));
  {
    MutexLock lock(mutex_);
    cache_ = std::make_shared<const RankCache>(std::move(cache));
  }
  zmq::BindOptions bind;
  bind.host = options_.host;
  bind.port = notify;
  const auto listening = wrapper_->listen(bind);
  if (!listening.ok()) return listening.status();
  bind.port = handshake;
  return wrapper_->serve_metadata(bind, metadata).status();
}

std::vector<Status> Rank::connect(std::span<const Endpoint> places, Duration timeout) {
  std::shared_ptr<const RankCache> cache;
  {
    MutexLock lock(mutex_);
    cache = cache_;
  }
  if (cache == nullptr) {
    return {places.size(), Status(Reason::kInvalidState, "the cache has not been registered")};
  }
  drop_dead_links();
  const auto answers = wrapper_->fetch_metadata(places, timeout);
  if (!answers.ok()) return {places.size(), answers.status()};
  std::vector<Status> outcomes;
  for (size_t i = 0; i < places.size(); ++i) {
    const Result<PeerMetadata>& answer = (*answers)[i];
    if (!answer.ok()) {
      outcomes.push_back(answer.status());
      continue;
    }
    auto link = PeerLink::make(*engine_, cache, *answer);
    outcomes.push_back(link.status());
    if (!link.ok()) continue;
    MutexLock lock(mutex_);
    links_[places[i].to_string()] = *std::move(link);
    refused_.erase(places[i].to_string());
  }
  return outcomes;
}

void Rank::drop_dead_links() {
  std::vector<std::shared_ptr<PeerLink>> dead;  // Let go of without the lock.
  MutexLock lock(mutex_);
  for (auto at = links_.begin(); at != links_.end();) {
    if (at->second->alive()) {
      ++at;
    } else {
      dead.push_back(std::move(at->second));
      at = links_.erase(at);
    }
  }
}

Result<std::vector<PeerRoute>> Rank::consumers(const PeerAddress& peer, uint32_t dp_rank) const {
  PeerAddress there = peer;
  there.dp_rank = dp_rank;
  SL_ASSIGN(std::vector<PeerRoute> routes, routes_as_producer(options_.place, there));
  if (routes.size() > 1) {
    return Status(
        Reason::kIncompatible,
        fmt::format("tp_size: ours {}, theirs {}: in write mode decode has at most as many "
                    "ranks as prefill",
                    options_.place.tp_size, peer.tp_size));
  }
  return routes;
}

bool Rank::linked(std::span<const Endpoint> places) const {
  MutexLock lock(mutex_);
  for (const Endpoint& place : places) {
    const auto at = links_.find(place.to_string());
    if (at == links_.end() || !at->second->alive()) return false;
  }
  return true;
}

std::vector<Endpoint> Rank::take_wanted() {
  std::map<std::string, Endpoint> wanted;
  {
    MutexLock lock(mutex_);
    wanted.swap(wanted_);
  }
  std::vector<Endpoint> places;
  for (auto& [name, place] : wanted) places.push_back(std::move(place));
  return places;
}

void Rank::refuse_link(const Endpoint& place, const Status& why) {
  MutexLock lock(mutex_);
  if (refused_.size() >= kMaxWanted) refused_.clear();
  refused_.insert_or_assign(place.to_string(), why);
}

// Errors: busy where the link is being made.
Result<std::shared_ptr<PeerLink>> Rank::link_of(const Endpoint& place) {
  const std::string name = place.to_string();
  MutexLock lock(mutex_);
  if (const auto at = links_.find(name); at != links_.end() && at->second->alive()) {
    return at->second;
  }
  if (const auto at = refused_.find(name); at != refused_.end()) {
    Status why = std::move(at->second);
    refused_.erase(at);
    return why;
  }
  if (wanted_.size() < kMaxWanted) wanted_.emplace(name, place);
  return Status(Reason::kBusy, "no link to " + name + " yet");
}

Result<std::vector<Move>> Rank::moves_of(const std::vector<PeerRoute>& routes,
                                         const PeerLink::Wanted& wanted) {
  std::vector<Move> moves;
  for (const PeerRoute& route : routes) {
    SL_ASSIGN(const std::shared_ptr<PeerLink> link, link_of(route.handshake));
    SL_ASSIGN(std::vector<Move> some, link->moves({wanted.groups, wanted.layers, route.slice}));
    std::move(some.begin(), some.end(), std::back_inserter(moves));
  }
  return merge_moves(std::move(moves));
}

MessageExtras Rank::own_extras() const {
  MessageExtras extras;
  extras.version = kMessageVersion;
  extras.incarnation = wrapper_->incarnation();
  extras.tp_rank = options_.place.tp_rank;
  extras.tp_size = options_.place.tp_size;
  return extras;
}

Status Rank::read(const std::string& transfer_id, const PeerAddress& peer,
                  std::span<const GroupBlocks> groups, Duration timeout) {
  std::shared_ptr<const RankCache> cache;
  {
    MutexLock lock(mutex_);
    cache = cache_;
  }
  if (cache == nullptr || groups.size() != cache->groups) {
    return {Reason::kInvalidArgument, fmt::format("{} groups of blocks", groups.size())};
  }
  std::vector<uint32_t> layers(cache->layers.size());
  for (uint32_t i = 0; i < layers.size(); ++i) layers[i] = i;
  SL_ASSIGN(const std::vector<PeerRoute> routes, producers(peer));
  ReadRequest request;
  request.transfer_id = transfer_id;
  request.timeout = timeout;
  SL_ASSIGN(request.moves, moves_of(routes, {groups, layers, {}}));
  SL_ASSIGN(const std::vector<PeerRoute> waiting, ranks_to_release(options_.place, peer));
  for (const PeerRoute& route : waiting) request.producers.push_back(route.notify);
  ReadSize size;
  for (const Move& move : request.moves) {
    size.bytes += move.ranges.bytes();
    size.ranges += move.ranges.sizes.size();
  }
  if (!routes.empty()) {
    SL_ASSIGN(const std::shared_ptr<PeerLink> link, link_of(routes[0].handshake));
    request.producers_have_version = link->has_version();
  }
  {
    MutexLock lock(mutex_);
    reads_[transfer_id] = size;
  }
  wrapper_->table().forget(transfer_id);
  return reader_->start(std::move(request));
}

Status Rank::receive(const std::string& transfer_id, const PeerAddress& peer,
                     Destination destination) {
  SL_ASSIGN(const std::vector<PeerRoute> routes, producers(peer));
  RemoteBlocks message;
  message.request_id = destination.request_id;
  message.transfer_id = transfer_id;
  message.decode_rank = options_.dp_rank;
  message.extras = own_extras();
  // All lists begin with the same index, so that one number tells it: null blocks fill them up.
  uint64_t first = UINT64_MAX;
  for (const BlockSpan& span : destination.spans) {
    if (!span.ids.empty()) first = std::min(first, span.first);
  }
  if (first == UINT64_MAX) return {Reason::kInvalidArgument, "no blocks to write to"};
  for (const BlockSpan& span : destination.spans) {
    std::vector<int64_t> ids;
    if (!span.ids.empty()) ids.assign(span.first - first, block_layout::kNullBlock);
    ids.insert(ids.end(), span.ids.begin(), span.ids.end());
    message.extras.block_groups.push_back(std::move(ids));
  }
  message.block_ids = message.extras.block_groups[0];
  message.extras.first_block = first;
  // Only a peer that gives the token back can be asked for it, and only it knows first_block.
  const bool versioned = have_version(routes);
  if (!versioned && first > 0) {
    return {Reason::kIncompatible, fmt::format("first_block: ours {}, theirs 0 (a peer of vLLM "
                                               "0.32 sends whole prompts)",
                                               first)};
  }
  if (versioned && !destination.token.empty()) message.extras.token = destination.token;
  Expectation expectation = believe(versioned ? destination.token : "");
  expectation.messages = static_cast<uint32_t>(routes.size());
  wrapper_->table().forget(transfer_id);
  SL_TRY(wrapper_->table().expect(transfer_id, expectation));
  for (const PeerRoute& route : routes) SL_TRY(wrapper_->notify(route.notify, message));
  return {};
}

bool Rank::have_version(const std::vector<PeerRoute>& routes) const {
  MutexLock lock(mutex_);
  for (const PeerRoute& route : routes) {
    const auto at = links_.find(route.handshake.to_string());
    if (at == links_.end() || !at->second->has_version()) return false;
  }
  return true;
}

bool Rank::producers_alive(const PeerAddress& peer) const {
  const auto routes = producers(peer);
  if (!routes.ok()) return false;
  std::vector<Endpoint> places;
  for (const PeerRoute& route : *routes) places.push_back(route.handshake);
  return linked(places);
}

bool Rank::end_received(const std::string& transfer_id, const Status& outcome) {
  return wrapper_->table().end(EventKind::kReceived, transfer_id, outcome);
}

Status Rank::release(const std::string& transfer_id, const PeerAddress& peer,
                     const std::string& token) {
  SL_ASSIGN(const std::vector<PeerRoute> routes, ranks_to_release(options_.place, peer));
  Release message{transfer_id, options_.place.tp_size, own_extras()};
  if (!token.empty()) message.extras.token = token;
  for (const PeerRoute& route : routes) SL_TRY(wrapper_->notify(route.notify, message));
  return {};
}

Status Rank::offer(const std::string& transfer_id, const std::string& token, uint32_t releases) {
  Expectation expectation = believe(token);
  expectation.messages = releases;
  wrapper_->table().forget(transfer_id);
  return wrapper_->table().expect(transfer_id, expectation);
}

bool Rank::end_offer(const std::string& transfer_id, const Status& why) {
  return wrapper_->table().end(EventKind::kSent, transfer_id, why);
}

std::vector<RankEvent> Rank::take_events() {
  std::vector<RankEvent> events;
  for (TransferEvent& event : wrapper_->table().take_events()) {
    RankEvent& told = events.emplace_back(RankEvent{std::move(event)});
    MutexLock lock(mutex_);
    if (told.event.kind == EventKind::kSent) sources_.erase(told.event.transfer_id);
    if (told.event.kind != EventKind::kReceived) continue;
    if (const auto at = reads_.find(told.event.transfer_id); at != reads_.end()) {
      told.bytes = at->second.bytes;
      told.ranges = at->second.ranges;
      reads_.erase(at);
    }
  }
  return events;
}

// Write mode of a producer.

Status Rank::start_write(const std::string& transfer_id, const std::string& request_id,
                         const PeerAddress& peer, const std::string& token) {
  SL_TRY(consumers(peer, peer.dp_rank).status());
  {
    MutexLock lock(mutex_);
    sources_[transfer_id] = {request_id, peer, {}, false, {}};
  }
  wrapper_->table().forget(transfer_id);
  WriteTask begin;
  begin.request_id = request_id;
  begin.transfer_id = transfer_id;
  begin.layer = kBegin;
  return writer_->schedule(std::move(begin), believe(token)).status();
}

Result<uint32_t> Rank::add_chunk(const std::string& transfer_id, std::vector<BlockSpan> spans,
                                 bool last) {
  MutexLock lock(mutex_);
  const auto at = sources_.find(transfer_id);
  if (at == sources_.end()) return unknown(transfer_id);
  Source& source = at->second;
  if (source.complete || source.chunks.size() >= kMaxChunks) {
    return Status(Reason::kInvalidArgument, "no chunk follows the last one of " + transfer_id);
  }
  source.chunks.push_back(std::move(spans));
  source.complete = last;
  return static_cast<uint32_t>(source.chunks.size() - 1);
}

Status Rank::write_layer(const std::string& transfer_id, uint32_t chunk, uint32_t layer,
                         std::unique_ptr<LayerTicket> ticket) {
  WriteTask task;
  {
    MutexLock lock(mutex_);
    const auto at = sources_.find(transfer_id);
    if (at == sources_.end()) return unknown(transfer_id);
    task.request_id = at->second.request_id;
  }
  task.transfer_id = transfer_id;
  task.layer = task_name(chunk, layer);
  task.ticket = std::move(ticket);
  return writer_->schedule(std::move(task)).status();
}

bool Rank::abort_write(const std::string& transfer_id, const std::string& why, Duration timeout) {
  {
    MutexLock lock(mutex_);
    const auto at = sources_.find(transfer_id);
    if (at == sources_.end()) return true;
    at->second.aborted = why;
  }
  // From here on plan() refuses, which tells the peer. In this state it has not run yet.
  if (writer_->state(transfer_id) == WriteState::kWaitingBlocks) return true;
  if (timeout > Duration::zero()) return writer_->abort(transfer_id, timeout).ok();
  writer_->start_abort(transfer_id, why);
  return false;
}

Result<Rank::Source> Rank::source_of(const std::string& transfer_id) const {
  MutexLock lock(mutex_);
  const auto at = sources_.find(transfer_id);
  if (at == sources_.end()) return unknown(transfer_id);
  return at->second;
}

Result<std::optional<Endpoint>> Rank::consumer_of(const Allocation& allocation,
                                                  const WriteTask& task) {
  SL_ASSIGN(const Source source, source_of(task.transfer_id));
  SL_ASSIGN(const std::vector<PeerRoute> routes, consumers(source.peer, allocation.decode_rank));
  if (routes.empty()) return std::optional<Endpoint>();
  return std::optional<Endpoint>(routes[0].notify);
}

Result<std::vector<Move>> Rank::plan(const Allocation& allocation,
                                     std::span<const WriteTask> tasks) {
  SL_ASSIGN(const Source source, source_of(tasks[0].transfer_id));
  if (source.aborted) return Status(Reason::kCancelled, *source.aborted);
  SL_ASSIGN(const std::vector<PeerRoute> routes, consumers(source.peer, allocation.decode_rank));
  std::map<uint32_t, std::vector<uint32_t>> layers_of_chunk;
  for (const WriteTask& task : tasks) {
    if (task.layer == kBegin) continue;
    const TaskPlace place = place_of(task.layer);
    layers_of_chunk[place.chunk].push_back(place.layer);
  }
  std::vector<Move> moves;
  for (const auto& [chunk, layers] : layers_of_chunk) {
    SL_ASSIGN(const std::vector<GroupBlocks> groups, pair_blocks(allocation, source, chunk));
    SL_ASSIGN(std::vector<Move> some, moves_of(routes, {groups, layers, {}}));
    std::move(some.begin(), some.end(), std::back_inserter(moves));
  }
  return merge_moves(std::move(moves));
}

// Blocks of one chunk that the consumer wants. With the last chunk everything that it wants must
// have been there.
Result<std::vector<GroupBlocks>> Rank::pair_blocks(const Allocation& allocation,
                                                   const Source& source, uint32_t chunk) const {
  const std::vector<BlockSpan>& spans = source.chunks[chunk];
  std::vector<std::vector<int64_t>> wanted = allocation.extras.block_groups;
  if (wanted.empty()) wanted.push_back(allocation.block_ids);
  if (wanted.size() != spans.size()) {
    return Status(Reason::kIncompatible,
                  fmt::format("block_groups: ours {}, theirs {}", spans.size(), wanted.size()));
  }
  const uint64_t first = allocation.extras.first_block.value_or(0);
  const bool check =
      source.complete && chunk + 1 == source.chunks.size() && allocation.extras.version.has_value();
  std::vector<GroupBlocks> groups(spans.size());
  for (size_t g = 0; g < spans.size(); ++g) {
    for (size_t i = 0; i < wanted[g].size(); ++i) {
      const uint64_t index = first + i;
      if (wanted[g][i] == block_layout::kNullBlock) continue;
      const auto has = [&](const std::vector<BlockSpan>& some) {
        return index >= some[g].first && index - some[g].first < some[g].ids.size() &&
               some[g].ids[index - some[g].first] != block_layout::kNullBlock;
      };
      if (has(spans)) {
        groups[g].local.push_back(spans[g].ids[index - spans[g].first]);
        groups[g].remote.push_back(wanted[g][i]);
      } else if (check && std::none_of(source.chunks.begin(), source.chunks.end(), has)) {
        return Status(Reason::kOutOfBounds,
                      fmt::format("block {} of group {} is not here", index, g));
      }
    }
  }
  return groups;
}

}  // namespace stagelink::moriio
