#include "connector/moriio/io/memory_desc.h"

#include <algorithm>
#include <limits>

#include "base/bytes.h"
#include "wire/checked_blob.h"
#include "wire/field_reader.h"
#include "wire/hello.h"
#include "wire/region_desc.h"

namespace stagelink::moriio {
namespace {

constexpr uint32_t kFields = 15;
constexpr uint32_t kMagic = 0x314d4c53;  // "SLM1"
constexpr size_t kZeros = 12;
constexpr const char* kWhat = "handles of a memory descriptor";
static_assert(kZeros == sizeof(uint64_t) + sizeof(uint32_t));
static_assert(wire::kBlobHeadBytes + wire::kRegionDescBytes + 8 + 8 + 4 + kZeros ==
              2 * kHandleBytes);

}  // namespace

void MemoryDesc::set_region(const RegionDesc& region) {
  ByteWriter body;
  body.put_bytes(region.pack());
  body.put(data);
  body.put(size);
  body.put(id);
  body.put_bytes(std::array<std::byte, kZeros>{});
  const auto blob = wire::seal_blob(kMagic, wire::own_version(), body.take());
  std::copy_n(blob.begin(), kHandleBytes, ipc_handle.begin());
  std::copy_n(blob.begin() + kHandleBytes, kHandleBytes, fabric_handle.begin());
}

Result<RegionDesc> MemoryDesc::region() const {
  std::vector<std::byte> blob(ipc_handle.begin(), ipc_handle.end());
  blob.insert(blob.end(), fabric_handle.begin(), fabric_handle.end());
  wire::FieldReader reader(kWhat, blob);
  SL_TRY(wire::open_blob(reader, blob, kMagic, kWhat).status());
  const auto packed = reader.get_bytes("region", wire::kRegionDescBytes);
  if (const auto value = reader.get<uint64_t>("data"); value != data) {
    reader.reject("data", "differs from the descriptor's", value);
  }
  if (const auto value = reader.get<uint64_t>("size"); value != size) {
    reader.reject("size", "differs from the descriptor's", value);
  }
  if (const auto value = reader.get<uint32_t>("id"); value != id) {
    reader.reject("id", "differs from the descriptor's", value);
  }
  reader.get_zero<uint64_t>("zero");
  reader.get_zero<uint32_t>("zero");
  SL_TRY(reader.finish());
  SL_ASSIGN(const RegionDesc region, RegionDesc::unpack(packed));
  const bool inside = data >= region.address && size <= region.bytes &&
                      data - region.address <= region.bytes - size;
  if (!inside) return Status(Reason::kFrame, "a memory descriptor lies outside its own region");
  return region;
}

std::vector<std::byte> MemoryDesc::pack() const {
  DescWriter out(kFields);
  out.put_text(engine_key);
  out.put_unsigned(id);
  out.put_signed(device_id);
  out.put_text(device_bus_id);
  out.put_unsigned(data);
  out.put_unsigned(size);
  out.put_unsigned(static_cast<uint32_t>(loc));
  out.put_handle(ipc_handle);
  out.put_signed(numa_node);
  out.put_unsigned(ipc_offset);
  out.put_handle(fabric_handle);
  out.put_signed(vpod_id);
  out.put_text(vpod_ppod_id);
  out.put_unsigned(fabric_offset);
  out.put_unsigned(fabric_alloc_size);
  return out.take();
}

Result<MemoryDesc> MemoryDesc::unpack(std::span<const std::byte> blob) {
  constexpr auto kMaxU64 = std::numeric_limits<uint64_t>::max();
  constexpr auto kMinI32 = std::numeric_limits<int32_t>::min();
  constexpr auto kMaxI32 = std::numeric_limits<int32_t>::max();
  SL_ASSIGN(DescReader in, DescReader::open(blob, "memory descriptor"));
  MemoryDesc desc;
  uint64_t id = desc.id;
  uint64_t loc = static_cast<uint32_t>(desc.loc);
  int64_t device_id = desc.device_id;
  int64_t numa_node = desc.numa_node;
  in.take_text("engine_key", desc.engine_key);
  in.take_unsigned("id", std::numeric_limits<uint32_t>::max(), id);
  in.take_signed("device_id", kMinI32, kMaxI32, device_id);
  in.take_text("device_bus_id", desc.device_bus_id);
  in.take_unsigned("data", kMaxU64, desc.data);
  in.take_unsigned("size", kMaxU64, desc.size);
  in.take_unsigned("loc", static_cast<uint32_t>(MemoryLocation::kGpu), loc);
  in.take_handle("ipc_handle", desc.ipc_handle);
  in.take_signed("numa_node", kMinI32, kMaxI32, numa_node);
  in.take_unsigned("ipc_offset", kMaxU64, desc.ipc_offset);
  in.take_handle("fabric_handle", desc.fabric_handle);
  in.take_signed("vpod_id", std::numeric_limits<int64_t>::min(),
                 std::numeric_limits<int64_t>::max(), desc.vpod_id);
  in.take_text("vpod_ppod_id", desc.vpod_ppod_id);
  in.take_unsigned("fabric_offset", kMaxU64, desc.fabric_offset);
  in.take_unsigned("fabric_alloc_size", kMaxU64, desc.fabric_alloc_size);
  if (!in.status().ok()) return in.status();
  desc.id = static_cast<uint32_t>(id);
  desc.device_id = static_cast<int32_t>(device_id);
  desc.loc = static_cast<MemoryLocation>(loc);
  desc.numa_node = static_cast<int32_t>(numa_node);
  return desc;
}

}  // namespace stagelink::moriio
