#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/convert/status_error.h"
#include "bindings/serializer/object_encoder.h"
#include "connector/serializer/dtype.h"
#include "connector/serializer/payload.h"

namespace nb = nanobind;

namespace stagelink::bindings {

using serializer::ArrayKind;
using serializer::ArraySource;
using serializer::Dtype;
using serializer::ListKind;
using serializer::Wire;

namespace {

// A name of a module that somebody has loaded, or nothing.
nb::object loaded(const char* module, const char* name) {
  PyObject* const modules = PyImport_GetModuleDict();
  const nb::handle found = PyDict_GetItemString(modules, module);
  if (!found.is_valid() || found.is_none()) return {};
  return nb::getattr(found, name, nb::object());
}

bool is_kind_of(nb::handle type, const char* module, const char* name) {
  const nb::object base = loaded(module, name);
  return base.is_valid() && PyType_Check(base.ptr()) != 0 &&
         PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type.ptr()),
                          reinterpret_cast<PyTypeObject*>(base.ptr())) != 0;
}

struct Layout {
  const void* first = nullptr;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // In bytes.
};

Layout layout_of_array(nb::handle array) {
  const nb::object interface = array.attr("__array_interface__");
  Layout layout;
  layout.first = reinterpret_cast<const void*>(nb::cast<uint64_t>(interface["data"][0]));
  layout.shape = nb::cast<std::vector<int64_t>>(array.attr("shape"));
  layout.strides = nb::cast<std::vector<int64_t>>(array.attr("strides"));
  return layout;
}

Layout layout_of_tensor(nb::handle tensor, int64_t item_bytes) {
  Layout layout;
  layout.first = reinterpret_cast<const void*>(nb::cast<uint64_t>(tensor.attr("data_ptr")()));
  layout.shape = nb::cast<std::vector<int64_t>>(tensor.attr("shape"));
  layout.strides = nb::cast<std::vector<int64_t>>(tensor.attr("stride")());
  for (int64_t& stride : layout.strides) stride *= item_bytes;
  return layout;
}

// NumPy's own name of a type, or that of ml_dtypes; empty for objects, records and void.
std::string name_of_dtype(nb::handle dtype) {
  auto name = nb::cast<std::string>(dtype.attr("str"));
  if (serializer::numpy_item_bytes(name).has_value()) return name;
  name = text_of(dtype.attr("name"));
  const Dtype* const known = serializer::find_dtype(name);
  const bool extended = known != nullptr && known->numpy.empty();
  return extended && nb::cast<uint64_t>(dtype.attr("itemsize")) == known->bytes ? name : "";
}

}  // namespace

ObjectEncoder::Kind ObjectEncoder::kind_of(nb::handle type) {
  for (const auto& [known, kind] : kinds_) {
    if (known.is(type)) return kind;
  }
  Kind kind = Kind::kOther;
  if (is_kind_of(type, "torch", "Tensor")) {
    kind = Kind::kTensor;
  } else if (is_kind_of(type, "numpy", "ndarray")) {
    kind = Kind::kNdarray;
  } else if (is_kind_of(type, "PIL.Image", "Image")) {
    kind = Kind::kImage;
  } else if (is_kind_of(type, "msgspec", "Struct")) {
    kind = Kind::kStruct;
  } else if (nb::hasattr(type, "__dataclass_fields__")) {
    kind = Kind::kDataclass;
  } else if (nb::hasattr(type, "__attrs_attrs__")) {
    kind = Kind::kAttrs;
  } else if (type.is(reinterpret_cast<PyObject*>(&PySlice_Type))) {
    kind = Kind::kSlice;
  }
  kinds_.emplace_back(nb::borrow(type), kind);
  return kind;
}

void ObjectEncoder::tensor(nb::handle object) {
  if (text_of(object.attr("layout")) != "torch.strided") {
    refuse(object, "only strided tensors have bytes to send; make it dense");
  }
  auto name = text_of(object.attr("dtype"));
  if (name.starts_with("torch.")) name.erase(0, 6);
  const Dtype* const dtype = serializer::find_dtype(name);
  if (dtype == nullptr || !dtype->torch) {
    refuse(object, fmt::format("elements of type `{}` have no form", name));
  }
  nb::object held = nb::borrow(object);
  const auto device = nb::cast<std::string>(object.attr("device").attr("type"));
  if (device == "meta") refuse(object, "a tensor on device meta has no bytes");
  if (device != "cpu") held = held.attr("detach")().attr("cpu")();
  if (nb::cast<bool>(held.attr("is_conj")())) held = held.attr("resolve_conj")();
  if (nb::cast<bool>(held.attr("is_neg")())) held = held.attr("resolve_neg")();
  const Layout layout = layout_of_tensor(held, dtype->bytes);
  auto source = ArraySource::create(layout.first, layout.shape, layout.strides, dtype->bytes);
  check(source.status());
  give({ArrayKind::kTensor, name, {}, layout.shape, *std::move(source)}, held);
}

void ObjectEncoder::ndarray(nb::handle object) {
  if (nb::hasattr(object, "mask")) refuse(object, "its mask would be lost; use .filled()");
  const nb::object dtype = object.attr("dtype");
  const std::string name = name_of_dtype(dtype);
  if (name.empty()) {
    refuse(object, fmt::format("elements of type `{}` have no form", text_of(dtype)));
  }
  const Layout layout = layout_of_array(object);
  auto source = ArraySource::create(layout.first, layout.shape, layout.strides,
                                    *serializer::array_item_bytes(name));
  check(source.status());
  give({ArrayKind::kNdarray, name, {}, layout.shape, *std::move(source)}, object);
}

void ObjectEncoder::image(nb::handle object) {
  const auto mode = nb::cast<std::string>(object.attr("mode"));
  const serializer::ImageMode* const known = serializer::find_image_mode(mode);
  if (known == nullptr) refuse(object, fmt::format("pictures of mode `{}` have no form", mode));
  const bool compat = wire_ == Wire::kCompat;
  if (compat && known->item != "|u1" && known->item != "|b1") {
    refuse(object,
           fmt::format("a picture of mode `{}` would lose its values here: use wire `fast`, "
                       "or an array",
                       mode));
  }
  const std::string item(compat ? std::string_view("|u1") : known->item);
  const nb::object array =
      nb::module_::import_("numpy").attr("asarray")(object, nb::arg("dtype") = item);
  const Layout layout = layout_of_array(array);
  auto source = ArraySource::create(layout.first, layout.shape, layout.strides,
                                    *serializer::numpy_item_bytes(item));
  check(source.status());
  give({ArrayKind::kImage, {}, mode, layout.shape, *std::move(source)}, array);
}

void ObjectEncoder::give(const serializer::PlanBuilder::ArrayPart& part, nb::handle owner) {
  if (in_key_) begin_map(4, 4);
  check(builder_.array(part));
  kept_.owners.push_back(nb::borrow(owner));
}

// Struct fields that hold their default are left out where its class says so: the same object, or
// an empty list, dict or set where the default makes one.
namespace {

bool is_default(nb::handle value, nb::handle standard) {
  if (value.is(standard)) return true;
  const nb::object factory = nb::getattr(standard, "factory", nb::object());
  if (!factory.is_valid() || !value.type().is(factory)) return false;
  PyObject* const raw = value.ptr();
  if (PyList_CheckExact(raw)) return PyList_GET_SIZE(raw) == 0;
  if (PyDict_CheckExact(raw)) return PyDict_Size(raw) == 0;
  return PyAnySet_CheckExact(raw) != 0 && PySet_GET_SIZE(raw) == 0 && PyFrozenSet_Check(raw) == 0;
}

}  // namespace

void ObjectEncoder::structure(nb::handle object) {
  const nb::handle type = object.type();
  const nb::object config = type.attr("__struct_config__");
  const nb::tuple names(type.attr("__struct_fields__"));
  const nb::tuple encoded(type.attr("__struct_encode_fields__"));
  const nb::tuple defaults(type.attr("__struct_defaults__"));
  const nb::object tag = config.attr("tag");
  const bool omit = nb::cast<bool>(config.attr("omit_defaults"));
  const bool as_list = nb::cast<bool>(config.attr("array_like"));
  const nb::object unset = loaded("msgspec", "UNSET");
  Fields fields;
  if (!tag.is_none()) fields.emplace_back(nb::borrow(config.attr("tag_field")), nb::borrow(tag));
  const size_t tags = fields.size();
  const size_t without_default = names.size() - defaults.size();
  for (size_t i = 0; i < names.size(); ++i) {
    nb::object entry = object.attr(names[i]);
    if (!as_list) {
      if (entry.is(unset)) continue;
      if (omit && i >= without_default && is_default(entry, defaults[i - without_default]))
        continue;
    }
    fields.emplace_back(nb::borrow(encoded[i]), std::move(entry));
  }
  if (!as_list) return write_fields(fields, names.size() + tags);
  check(builder_.list(fields.size(), ListKind::kList));
  for (const auto& [name, entry] : fields) {
    const PayloadPath::Step step(path_, name, true);
    value(entry);
  }
}

void ObjectEncoder::dataclass(nb::handle object) {
  const nb::dict described(object.type().attr("__dataclass_fields__"));
  const nb::object unset = loaded("msgspec", "UNSET");
  Fields fields;
  uint64_t widest = 0;
  for (const auto& [name, field] : described) {
    // Class variables and arguments of __init__ alone stand in the same table.
    const nb::object role = nb::getattr(field, "_field_type", nb::none());
    if (text_of(nb::getattr(role, "name", nb::str(""))) != "_FIELD") continue;
    ++widest;
    nb::object entry = nb::getattr(object, name, nb::object());
    if (!entry.is_valid() || (unset.is_valid() && entry.is(unset))) continue;
    fields.emplace_back(nb::borrow(name), std::move(entry));
  }
  write_fields(fields, widest);
}

void ObjectEncoder::attrs(nb::handle object) {
  const nb::object unset = loaded("msgspec", "UNSET");
  Fields fields;
  uint64_t widest = 0;
  for (const nb::handle attribute : object.type().attr("__attrs_attrs__")) {
    const nb::object name = attribute.attr("name");
    ++widest;
    nb::object entry = nb::getattr(object, name, nb::object());
    if (!entry.is_valid() || (unset.is_valid() && entry.is(unset))) continue;
    fields.emplace_back(name, std::move(entry));
  }
  write_fields(fields, widest);
}

void ObjectEncoder::write_fields(const Fields& fields, uint64_t widest) {
  begin_map(fields.size(), widest);
  for (const auto& [name, entry] : fields) {
    const PayloadPath::Step step(path_, name, true);
    key(name);
    value(entry);
  }
}

void ObjectEncoder::other(nb::handle object) {
  const nb::object reduced = reduce_(object);
  if (reduced.is_none()) refuse(object, advice_for(object));
  const nb::tuple pair(reduced);
  const nb::object held = nb::borrow(pair[1]);
  if (nb::cast<std::string>(pair[0]) == "time") {
    builder_.time(nb::cast<int64_t>(held[0]), nb::cast<uint32_t>(held[1]));
    return;
  }
  // It came from a callable, whose answers could lead to each other for ever.
  if (++reductions_ > serializer::kMaxDepth) refuse(object, "what stands for it never ends");
  value(held);
  --reductions_;
}

std::string ObjectEncoder::advice_for(nb::handle object) {
  if (nb::hasattr(object, "item") && nb::hasattr(object, "dtype")) return "convert it with .item()";
  if (PyComplex_Check(object.ptr()) != 0) return "store its real and imaginary part";
  return "convert it to plain values, a tensor or an array";
}

}  // namespace stagelink::bindings
