#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include "base/bytes.h"
#include "stagelink/engine_options.h"

// Engine options as a child gets them from its test.
namespace stagelink::test {

template <typename Options, typename Visit>
void visit_options(Options& o, Visit&& visit) {
  visit(o.name), visit(o.bind), visit(o.interface), visit(o.advertise), visit(o.runtime_dir),
      visit(o.transports);
  visit(o.inline_bytes), visit(o.slice_bytes), visit(o.copy_threads), visit(o.cma_min_run);
  visit(o.allow_ptrace), visit(o.max_regions);
  visit(o.secret_file), visit(o.checksum);
  visit(o.stream_stripes), visit(o.stripe_min_bytes);
  visit(o.max_peers), visit(o.max_transfers), visit(o.max_ranges), visit(o.max_notification_bytes);
  visit(o.connect_timeout), visit(o.transfer_timeout), visit(o.deregister_timeout);
  visit(o.heartbeat_interval), visit(o.heartbeat_misses);
  visit(o.fault_seed), visit(o.fault_drop_ppm), visit(o.fault_delay_ppm), visit(o.fault_cut_ppm);
  visit(o.fault_flip_ppm);
}

class OptionsWriter {
 public:
  explicit OptionsWriter(ByteWriter& out) noexcept : out_(out) {}
  template <typename T>
  void operator()(const T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      out_.put_string(value);
    } else if constexpr (std::is_same_v<T, Duration>) {
      out_.put(static_cast<int64_t>(value.count()));
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      out_.put(static_cast<uint16_t>(value.size()));
      for (const std::string& text : value) out_.put_string(text);
    } else {
      out_.put(value);
    }
  }

 private:
  ByteWriter& out_;
};

class OptionsReader {
 public:
  explicit OptionsReader(ByteReader& in) noexcept : in_(in) {}
  template <typename T>
  void operator()(T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      value = in_.get_string();
    } else if constexpr (std::is_same_v<T, Duration>) {
      value = Duration(in_.get<int64_t>());
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      value.assign(in_.get<uint16_t>(), {});
      for (std::string& text : value) text = in_.get_string();
    } else {
      value = in_.get<T>();
    }
  }

 private:
  ByteReader& in_;
};

}  // namespace stagelink::test
