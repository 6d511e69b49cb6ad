#include "connector/encoder_cache/registry/http/request_reader.h"

#include <algorithm>
#include <optional>
#include <vector>

#include <boost/asio/buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

namespace stagelink::encoder_cache {
namespace {

namespace http = boost::beast::http;

constexpr size_t kFirstRoom = 2048;
constexpr int kBadRequest = 400;
constexpr int kBodyTooLarge = 413;
constexpr int kExpectationFailed = 417;
constexpr int kHeadTooLarge = 431;

using Parser = http::request_parser<http::string_body>;

// What a client waits for before it goes on. One of HTTP/1.0 knows no such thing.
std::string_view expectation_of(const Parser& parser) {
  const auto& message = parser.get();
  if (!parser.is_header_done() || message.version() < 11) return {};
  const auto found = message.find(http::field::expect);
  return found == message.end() ? std::string_view()
                                : std::string_view(found->value().data(), found->value().size());
}

bool wants_continue(std::string_view expectation) {
  return boost::beast::iequals({expectation.data(), expectation.size()}, "100-continue");
}

std::string_view view_of(boost::beast::string_view text) noexcept {
  return {text.data(), text.size()};
}

}  // namespace

struct RequestReader::Parts {
  const size_t max_head_bytes;
  const uint64_t max_body_bytes;
  std::vector<char> buffer;
  size_t begin = 0;  // What has come and is not parsed lies in [begin, end).
  size_t end = 0;
  std::optional<Parser> parser;
  bool expectation_taken = false;
  int refusal = 0;
};

RequestReader::RequestReader(size_t max_head_bytes, uint64_t max_body_bytes)
    : parts_(new Parts{.max_head_bytes = max_head_bytes, .max_body_bytes = max_body_bytes}) {}

RequestReader::~RequestReader() = default;

std::span<char> RequestReader::prepare() {
  Parts& parts = *parts_;
  if (parts.begin == parts.end) parts.begin = parts.end = 0;
  if (parts.end == parts.buffer.size() && parts.begin > 0) {
    std::copy(parts.buffer.begin() + static_cast<ptrdiff_t>(parts.begin),
              parts.buffer.begin() + static_cast<ptrdiff_t>(parts.end), parts.buffer.begin());
    parts.end -= parts.begin;
    parts.begin = 0;
  }
  if (parts.end == parts.buffer.size()) {
    parts.buffer.resize(std::max(kFirstRoom, 2 * parts.buffer.size()));
  }
  return std::span(parts.buffer).subspan(parts.end);
}

RequestReader::State RequestReader::commit(size_t bytes) {
  parts_->end += bytes;
  return parse();
}

RequestReader::State RequestReader::next() {
  parts_->parser.reset();
  return parse();
}

RequestReader::State RequestReader::parse() {
  Parts& parts = *parts_;
  if (!parts.parser.has_value()) {
    if (parts.begin == parts.end) return State::kMore;
    parts.parser.emplace();
    parts.expectation_taken = false;
    parts.parser->eager(true);
    parts.parser->header_limit(static_cast<uint32_t>(parts.max_head_bytes));
    parts.parser->body_limit(parts.max_body_bytes);
  }
  boost::beast::error_code error;
  while (parts.begin < parts.end && !parts.parser->is_done() && !error) {
    const boost::asio::const_buffer bytes(parts.buffer.data() + parts.begin,
                                          parts.end - parts.begin);
    parts.begin += parts.parser->put(bytes, error);
  }
  if (error == http::error::need_more) {
    // The parser wants a head, or the line in front of a chunk, in one piece.
    if (parts.end - parts.begin <= parts.max_head_bytes) return State::kMore;
    error = http::error::header_limit;
  }
  const std::string_view expectation = expectation_of(*parts.parser);
  const bool is_unmet = !expectation.empty() && !wants_continue(expectation);
  if (!error && !is_unmet) return parts.parser->is_done() ? State::kReady : State::kMore;
  parts.refusal = !error                               ? kExpectationFailed
                  : error == http::error::header_limit ? kHeadTooLarge
                  : error == http::error::body_limit   ? kBodyTooLarge
                                                       : kBadRequest;
  return State::kRefused;
}

bool RequestReader::take_expectation() {
  Parts& parts = *parts_;
  if (!parts.parser.has_value() || !parts.parser->is_header_done() || parts.expectation_taken) {
    return false;
  }
  parts.expectation_taken = true;
  return wants_continue(expectation_of(*parts.parser));
}

HttpRequest RequestReader::request() const {
  const auto& message = parts_->parser->get();
  return {.method = view_of(message.method_string()),
          .target = view_of(message.target()),
          .body = message.body(),
          .signature = view_of(message["Stagelink-Signature"])};
}

bool RequestReader::keep_alive() const { return parts_->parser->get().keep_alive(); }

bool RequestReader::http_1_0() const { return parts_->parser->get().version() < 11; }

int RequestReader::refusal() const noexcept { return parts_->refusal; }

bool RequestReader::idle() const noexcept {
  return parts_->begin == parts_->end && !parts_->parser.has_value();
}

}  // namespace stagelink::encoder_cache
