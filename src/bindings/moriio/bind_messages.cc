#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bind.h"
#include "bindings/convert/convert.h"
#include "bindings/convert/status_error.h"
#include "connector/moriio/messages/handshake.h"
#include "connector/moriio/messages/heartbeat.h"
#include "connector/moriio/messages/notify_message.h"
#include "connector/moriio/messages/request_id.h"
#include "connector/moriio/options.h"
#include "connector/moriio/ports.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

using namespace moriio;  // NOLINT(google-build-using-namespace): the whole file speaks of it.

// One field of a message, either way: out of a dict, or into one.
class FieldsIn {
 public:
  explicit FieldsIn(const nb::dict& from) : from_(from) {}

  template <typename T>
  void field(const char* name, T& value) const {
    if (!from_.contains(name)) {
      raise(Status(Reason::kInvalidArgument, fmt::format("message: `{}` is missing", name)));
    }
    take(name, value);
  }
  template <typename T>
  void optional(const char* name, std::optional<T>& value) const {
    if (!from_.contains(name)) return;
    value.emplace();
    take(name, *value);
  }
  template <typename T>
  void container(const char* name, T& value) const {
    if (from_.contains(name)) take(name, value);
  }

 private:
  template <typename T>
  void take(const char* name, T& value) const {
    const nb::object object = from_[name];
    if (!nb::try_cast(object, value)) mistyped(name, object);
  }
  void take(const char* name, Bytes& value) const {
    const BytesView view(from_[name], name);
    value.assign(view.bytes().begin(), view.bytes().end());
  }
  [[noreturn]] static void mistyped(const char* name, const nb::object& object) {
    raise(Status(
        Reason::kInvalidArgument,
        fmt::format("message: `{}` has the wrong type or range, {}", name, type_name_of(object))));
  }

  const nb::dict& from_;
};

class FieldsOut {
 public:
  nb::dict take() { return std::move(to_); }

  template <typename T>
  void field(const char* name, const T& value) {
    to_[name] = nb::cast(value);
  }
  void field(const char* name, const Bytes& value) { to_[name] = to_bytes_object(value); }
  template <typename T>
  void optional(const char* name, const std::optional<T>& value) {
    if (value.has_value()) field(name, *value);
  }
  template <typename T>
  void container(const char* name, const T& value) {
    if (!value.empty()) field(name, value);
  }

 private:
  nb::dict to_;
};

// Each message once, for both directions.
template <typename Fields, typename Extras>
void visit_extras(Fields& fields, Extras& extras) {
  fields.optional("version", extras.version);
  fields.optional("compat_hash", extras.compat_hash);
  fields.optional("incarnation", extras.incarnation);
  fields.optional("status", extras.status);
  fields.optional("first_block", extras.first_block);
  fields.optional("token", extras.token);
  fields.optional("tp_rank", extras.tp_rank);
  fields.optional("writes", extras.writes);
  fields.container("block_groups", extras.block_groups);
}

template <typename Fields, typename Message>
void visit_fields(Fields& fields, Message& message) {
  using Plain = std::remove_const_t<Message>;
  if constexpr (std::is_same_v<Plain, LegacyId>) {
    fields.field("transfer_id", message.id);
  } else if constexpr (std::is_same_v<Plain, Heartbeat>) {
    fields.field("type", message.type);
    fields.field("http_address", message.http_address);
    fields.field("zmq_address", message.zmq_address);
    fields.field("dp_size", message.dp_size);
    fields.field("tp_size", message.tp_size);
    fields.field("transfer_mode", message.transfer_mode);
    visit_extras(fields, message.extras);
  } else if constexpr (std::is_same_v<Plain, AgentMetadata>) {
    fields.field("engine_id", message.engine_id);
    fields.field("agent_metadata", message.agent_metadata);
    fields.field("kv_caches_base_addr", message.kv_caches_base_addr);
    fields.field("num_blocks", message.num_blocks);
    fields.field("block_len", message.block_len);
    fields.field("attn_backend_name", message.attn_backend_name);
    fields.container("compat", message.compat);
    fields.container("layer_num_blocks", message.layer_num_blocks);
    fields.optional("tp_size", message.extras.tp_size);
    visit_extras(fields, message.extras);
  } else {
    fields.field("transfer_id", message.transfer_id);
    if constexpr (std::is_same_v<Plain, RemoteBlocks>) {
      fields.field("req_id", message.request_id);
      fields.field("block_notify_list", message.block_ids);
      fields.field("decode_rank", message.decode_rank);
    }
    if constexpr (std::is_same_v<Plain, Release>) {
      fields.field("consumer_tp_size", message.consumer_tp_size);
    }
    fields.optional("tp_size", message.extras.tp_size);
    visit_extras(fields, message.extras);
  }
}

template <typename Message>
nb::dict to_dict(const Message& message) {
  FieldsOut fields;
  visit_fields(fields, message);
  return fields.take();
}

template <typename Message>
Message from_dict(const nb::dict& dict) {
  Message message;
  FieldsIn fields(dict);
  visit_fields(fields, message);
  return message;
}

nb::dict decode_notify(nb::handle frame) {
  const NotifyMessage message = unwrap(decode_notify_message(BytesView(frame, "frame").bytes()));
  nb::dict out = std::visit([](const auto& one) { return to_dict(one); }, message);
  out["type"] = to_str(message_type(message));
  return out;
}

template <size_t index = 0>
NotifyMessage message_of(std::string_view type, const nb::dict& dict) {
  if constexpr (index == std::variant_size_v<NotifyMessage>) {
    raise(Status(Reason::kInvalidArgument, fmt::format("message: unknown type `{}`", type)));
  } else {
    using Message = std::variant_alternative_t<index, NotifyMessage>;
    if (message_type(Message{}) == type) return from_dict<Message>(dict);
    return message_of<index + 1>(type, dict);
  }
}

nb::bytes encode_notify(const nb::dict& message) {
  std::string type;
  FieldsIn(message).field("type", type);
  return to_bytes_object(unwrap(encode(message_of(type, message))));
}

void bind_codecs(nb::module_& m) {
  m.def("moriio_decode_notify", &decode_notify, nb::arg("frame"),
        nb::sig("def moriio_decode_notify(frame: Buffer) -> dict[str, Any]"),
        "A notification as its keys; `type` is remote_blocks, write_done, write_failed, release, "
        "renew or legacy. Raises Corrupt, naming the key.");
  m.def("moriio_encode_notify", &encode_notify, nb::arg("message"),
        nb::sig("def moriio_encode_notify(message: dict[str, Any]) -> bytes"));
  m.def(
      "moriio_decode_agent_metadata",
      [](nb::handle frame) {
        return to_dict(unwrap(decode_agent_metadata(BytesView(frame, "frame").bytes())));
      },
      nb::arg("frame"),
      nb::sig("def moriio_decode_agent_metadata(frame: Buffer) -> dict[str, Any]"));
  m.def(
      "moriio_encode_agent_metadata",
      [](const nb::dict& metadata) {
        return to_bytes_object(unwrap(encode(from_dict<AgentMetadata>(metadata))));
      },
      nb::arg("metadata"),
      nb::sig("def moriio_encode_agent_metadata(metadata: dict[str, Any]) -> bytes"));
  m.def(
      "moriio_decode_layer_map",
      [](nb::handle frame) {
        nb::dict out;
        for (const auto& layer : unwrap(decode_layer_map(BytesView(frame, "frame").bytes()))) {
          nb::list regions;
          for (const Bytes& region : layer.regions) regions.append(to_bytes_object(region));
          out[to_str(layer.layer)] = regions;
        }
        return out;
      },
      nb::arg("frame"),
      nb::sig("def moriio_decode_layer_map(frame: Buffer) -> dict[str, list[bytes]]"));
  m.def(
      "moriio_encode_layer_map",
      [](const nb::dict& layers) {
        LayerMap map;
        for (const auto& [name, regions] : layers) {
          LayerRegions& layer = map.emplace_back();
          layer.layer = nb::cast<std::string>(name);
          for (const nb::handle region : regions) {
            const BytesView view(region, "region");
            layer.regions.emplace_back(view.bytes().begin(), view.bytes().end());
          }
        }
        return to_bytes_object(unwrap(encode(map)));
      },
      nb::arg("layers"),
      nb::sig("def moriio_encode_layer_map(layers: dict[str, list[bytes]]) -> bytes"));
  m.def(
      "moriio_decode_heartbeat",
      [](nb::handle frame) {
        return to_dict(unwrap(decode_heartbeat(BytesView(frame, "frame").bytes())));
      },
      nb::arg("frame"), nb::sig("def moriio_decode_heartbeat(frame: Buffer) -> dict[str, Any]"));
  m.def(
      "moriio_encode_heartbeat",
      [](const nb::dict& heartbeat) {
        return to_bytes_object(unwrap(encode(from_dict<Heartbeat>(heartbeat))));
      },
      nb::arg("heartbeat"),
      nb::sig("def moriio_encode_heartbeat(heartbeat: dict[str, Any]) -> bytes"));
}

using Address = std::tuple<std::string, uint16_t, uint16_t>;

Address to_tuple(const ZmqAddress& address) {
  return {address.host, address.handshake_port, address.notify_port};
}

ZmqAddress from_tuple(const Address& address) {
  return {std::get<0>(address), std::get<1>(address), std::get<2>(address)};
}

void bind_addresses(nb::module_& m) {
  m.def(
      "moriio_parse_zmq_address",
      [](std::string_view text) { return to_tuple(unwrap(parse_zmq_address(text))); },
      nb::arg("text"), nb::sig("def moriio_parse_zmq_address(text: str) -> tuple[str, int, int]"),
      "Host, handshake port and notify port of `host:IP,handshake:PORT,notify:PORT`.");
  m.def(
      "moriio_parse_request_id",
      [](std::string_view request_id) {
        const RequestAddresses found = unwrap(parse_request_id(request_id));
        return std::pair(to_tuple(found.prefill), to_tuple(found.decode));
      },
      nb::arg("request_id"),
      nb::sig("def moriio_parse_request_id(request_id: str) -> tuple[tuple[str, int, int], "
              "tuple[str, int, int]]"),
      "The addresses of prefill and decode. Raises NotFound if it holds none.");
  m.def(
      "moriio_format_request_id",
      [](const Address& prefill, const Address& decode, std::string_view unique) {
        return unwrap(format_request_id({from_tuple(prefill), from_tuple(decode)}, unique));
      },
      nb::arg("prefill"), nb::arg("decode"), nb::arg("unique"),
      nb::sig("def moriio_format_request_id(prefill: tuple[str, int, int], decode: tuple[str, int, "
              "int], unique: str) -> str"));
  m.def(
      "moriio_rank_port",
      [](uint32_t base, uint32_t dp_local, uint32_t tp, uint32_t tp_size) {
        return unwrap(rank_port(base, {dp_local, tp, tp_size}));
      },
      nb::arg("base"), nb::arg("dp_local"), nb::arg("tp"), nb::arg("tp_size"),
      "Port of a rank of the engine whose base port and TP size are given.");
  m.def(
      "moriio_remote_tp_rank",
      [](uint32_t local_rank, uint32_t local_size, uint32_t remote_size) {
        return unwrap(remote_tp_rank(local_rank, local_size, remote_size));
      },
      nb::arg("local_rank"), nb::arg("local_size"), nb::arg("remote_size"));
  m.def(
      "moriio_expected_ack_count",
      [](uint32_t producer_size, uint32_t consumer_size) {
        return unwrap(expected_ack_count(producer_size, consumer_size));
      },
      nb::arg("producer_size"), nb::arg("consumer_size"));
}

GivenOptions given_options(const nb::dict& extra) {
  GivenOptions given;
  for (const auto& [key, value] : extra) {
    if (value.is_none()) continue;
    const auto name = nb::cast<std::string>(key);
    if (nb::isinstance<nb::bool_>(value)) {
      given.emplace_back(name, nb::cast<bool>(value));
    } else if (int64_t number = 0; nb::isinstance<nb::int_>(value) && nb::try_cast(value, number)) {
      given.emplace_back(name, number);
    } else if (nb::isinstance<nb::float_>(value)) {
      given.emplace_back(name, nb::cast<double>(value));
    } else {
      // A list or a map of the host's own key is not looked at; elsewhere its text is refused.
      given.emplace_back(name, std::string(nb::str(value).c_str()));
    }
  }
  return given;
}

// A field as Python's type; no option of this table is a list or an effort.
struct ToPython {
  nb::object operator()(const Duration* field) const {
    return nb::cast(std::chrono::duration<double>(*field).count());
  }
  nb::object operator()(const std::vector<std::string>*) const { return nb::none(); }
  nb::object operator()(const Effort*) const { return nb::none(); }
  nb::object operator()(config::ChoiceField) const { return nb::none(); }  // It has none.
  template <typename T>
  nb::object operator()(const T* field) const {
    return nb::cast(*field);
  }
};

nb::dict options_dict(MoriioOptions& options) {
  nb::dict out;
  for (const auto& row : moriio_option_table().rows) {
    out[to_str(row.name)] = std::visit(ToPython{}, row.field(&options));
  }
  return out;
}

}  // namespace

void bind_moriio_messages(nb::module_& m) {
  bind_codecs(m);
  bind_addresses(m);
  m.def(
      "moriio_options",
      [](const nb::dict& extra) {
        LoadedOptions loaded = unwrap(load_moriio_options(given_options(extra)));
        return std::pair(options_dict(loaded.options), loaded.notes);
      },
      nb::arg("extra"),
      nb::sig("def moriio_options(extra: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]"),
      "kv_connector_extra_config as values by key, timeouts in seconds, and what to log once. "
      "Raises InvalidArgument, naming the key.");
}

}  // namespace stagelink::bindings
