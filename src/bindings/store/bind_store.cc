#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bindings/bind.h"
#include "bindings/convert/convert.h"
#include "bindings/convert/copied_memory.h"
#include "bindings/convert/engine_arguments.h"
#include "bindings/convert/gil.h"
#include "bindings/convert/status_error.h"
#include "bindings/store/py_store.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

const PyType_Slot kViewSlots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(&PyView::get_buffer)},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(&PyView::release_buffer)},
    {0, nullptr},
};
const PyType_Slot kPieceSlots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(&PyPiece::get_buffer)},
    {0, nullptr},
};

std::string to_key(nb::handle key) {
  if (PyUnicode_Check(key.ptr()) != 0 || PyObject_CheckBuffer(key.ptr()) == 0) {
    return to_text(key, "key");
  }
  const BytesView view(key, "key");
  return {reinterpret_cast<const char*>(view.bytes().data()), view.bytes().size()};
}

// None: the store's default. 0: for ever.
Duration to_ttl(nb::handle ttl) {
  if (ttl.is_none()) return Duration::zero();
  const Duration duration = to_duration(ttl, "ttl");
  return duration == Duration::zero() ? Duration(-1) : duration;
}

// Lets Ctrl-C end a wait. Other threads get no signals and need not be asked.
Interrupted by_signals() {
  return [] {
    const nb::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0;
  };
}

template <typename T>
T unwrap_or_signal(Result<T> result) {
  if (!result.ok() && PyErr_Occurred() != nullptr) throw nb::python_error();
  return unwrap(std::move(result));
}

PutOptions put_options(nb::handle timeout, nb::handle ttl) {
  PutOptions options;
  options.timeout = to_duration(timeout, "timeout");
  options.ttl = to_ttl(ttl);
  options.interrupted = by_signals();
  return options;
}

PyWriter* create(PyStore& self, nb::handle key, nb::handle size, nb::handle timeout,
                 nb::handle ttl) {
  const std::string name = to_key(key);
  const uint64_t bytes = to_bytes(size, "size");
  const PutOptions options = put_options(timeout, ttl);
  return new PyWriter(
      unwrap_or_signal(without_gil([&] { return self.store().create(name, bytes, options); })));
}

uint64_t put(PyStore& self, nb::handle key, nb::handle data, nb::handle timeout, nb::handle ttl) {
  const std::string name = to_key(key);
  const PythonMemory memory = memory_in_order(data);
  const std::span bytes(static_cast<const std::byte*>(memory.address()), memory.bytes());
  const PutOptions options = put_options(timeout, ttl);
  return unwrap_or_signal(without_gil([&] { return self.store().put(name, bytes, options); }));
}

PyView* get(PyStore& self, nb::handle key, nb::handle timeout) {
  const std::string name = to_key(key);
  const Duration limit = to_duration(timeout, "timeout");
  return new PyView(
      unwrap_or_signal(without_gil([&] { return self.store().get(name, limit, by_signals()); })));
}

nb::list get_many(PyStore& self, nb::handle keys, nb::handle timeout) {
  std::vector<std::string> names;
  for (const nb::handle key : items_of(keys, "keys")) names.push_back(to_key(key));
  const Duration limit = to_duration(timeout, "timeout");
  auto found = without_gil([&] { return self.store().get_many(names, limit); });
  nb::list out;
  for (Result<ObjectView>& view : found) {
    if (view.ok()) {
      out.append(nb::cast(new PyView(*std::move(view)), nb::rv_policy::take_ownership));
    } else {
      out.append(to_exception(view.status()));
    }
  }
  return out;
}

nb::dict usage(PyStore& self) {
  const StoreUsage usage = unwrap(without_gil([&] { return self.store().usage(); }));
  nb::dict out;
  out["capacity_bytes"] = usage.capacity_bytes;
  out["used_bytes"] = usage.used_bytes;
  out["objects"] = usage.objects;
  out["leased"] = usage.leased;
  out["evictions"] = usage.evictions;
  out["expirations"] = usage.expirations;
  return out;
}

nb::list pieces(nb::handle_t<PyWriter> self) {
  nb::list out;
  for (const std::span<std::byte> piece : nb::inst_ptr<PyWriter>(self)->writer().pieces()) {
    const nb::object owner =
        nb::cast(new PyPiece(nb::borrow(self), piece), nb::rv_policy::take_ownership);
    const nb::object view = nb::steal(PyMemoryView_FromObject(owner.ptr()));
    if (!view.is_valid()) throw nb::python_error();
    out.append(view);
  }
  return out;
}

void bind_writer(nb::module_& m) {
  nb::class_<PyPiece>(m, "ObjectPiece", nb::is_final(), nb::type_slots(kPieceSlots),
                      "Memory of an object that is being put; see ObjectWriter.pieces().");
  nb::class_<PyWriter>(
      m, "ObjectWriter", nb::is_final(),
      "An object that is being put. A context manager that aborts what is not sealed.")
      .def("pieces", &pieces, nb::sig("def pieces(self) -> list[memoryview]"),
           "The object's memory, in order: one writable piece, but for what a store must split. "
           "Write nothing after seal().")
      .def(
          "append",
          [](PyWriter& self, nb::handle data) {
            const PythonMemory memory = memory_in_order(data);
            const std::span bytes(static_cast<const std::byte*>(memory.address()), memory.bytes());
            ObjectWriter& writer = self.writer();
            check(without_gil([&] { return writer.append(bytes); }));
          },
          as_given("data"), nb::sig("def append(self, data: object) -> None"),
          "Copies bytes, an array or a tensor behind what was appended before.")
      .def("seal", &PyWriter::seal,
           "Publishes the object: gets find it from now on, and who waits for it is woken.")
      .def("abort", &PyWriter::abort, "Gives the memory back. May be called again.")
      .def_prop_ro("size", [](const PyWriter& self) { return self.any_writer().size(); })
      .def_prop_ro(
          "generation", [](const PyWriter& self) { return self.any_writer().generation(); },
          "That of the put, once it is sealed; 0 before.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> typing_extensions.Self"))
      .def(
          "__exit__", [](PyWriter& self, nb::handle, nb::handle, nb::handle) { self.abort(); },
          nb::arg("exc_type").none(), nb::arg("exc").none(), nb::arg("traceback").none(),
          nb::sig("def __exit__(self, exc_type: type[BaseException] | None, "
                  "exc: BaseException | None, traceback: types.TracebackType | None) -> None"));
}

void bind_view(nb::module_& m) {
  nb::class_<PyView>(
      m, "ObjectView", nb::is_final(), nb::is_weak_referenceable(), nb::type_slots(kViewSlots),
      "A lease on a sealed object: its bytes stay as they are until it is released. Has the buffer "
      "protocol, read-only: memoryview(view), numpy.frombuffer(view). A context manager that "
      "releases.")
      .def_prop_ro("nbytes", [](const PyView& self) { return self.view().bytes().size(); })
      .def("__len__", [](const PyView& self) { return self.view().bytes().size(); })
      .def_prop_ro("generation", [](const PyView& self) { return self.view().generation(); })
      .def_prop_ro(
          "address",
          [](const PyView& self) { return reinterpret_cast<uint64_t>(self.view().bytes().data()); })
      .def(
          "check", [](const PyView& self) { check(self.view().valid()); },
          "Raises if the bytes can no longer be trusted to stay.")
      .def("release", &PyView::release,
           "Ends the lease, as soon as no buffer looks at it. May be called again.")
      .def(
          "__bytes__", [](const PyView& self) { return to_bytes_object(self.view().bytes()); },
          nb::sig("def __bytes__(self) -> bytes"))
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> typing_extensions.Self"))
      .def(
          "__exit__", [](PyView& self, nb::handle, nb::handle, nb::handle) { self.release(); },
          nb::arg("exc_type").none(), nb::arg("exc").none(), nb::arg("traceback").none(),
          nb::sig("def __exit__(self, exc_type: type[BaseException] | None, "
                  "exc: BaseException | None, traceback: types.TracebackType | None) -> None"));
}

void bind_data(nb::class_<PyStore>& type) {
  type.def("create", &create, as_given("key"), as_given("size"), as_given("timeout") = 5,
           as_given("ttl") = nb::none(),
           nb::sig("def create(self, key: str | typing_extensions.Buffer, size: Size, "
                   "timeout: Timeout = 5, ttl: Timeout | None = None) -> ObjectWriter"),
           "Begins a put. Waits up to `timeout` for space. `ttl`: how long the object lives; None "
           "for the store's default, 0 for ever.")
      .def("put", &put, as_given("key"), as_given("data"), as_given("timeout") = 5,
           as_given("ttl") = nb::none(),
           nb::sig("def put(self, key: str | typing_extensions.Buffer, data: object, "
                   "timeout: Timeout = 5, ttl: Timeout | None = None) -> int"),
           "Copies bytes, an array or a tensor into the store. Gives the generation of the put.")
      .def("get", &get, as_given("key"), as_given("timeout") = 0,
           nb::sig("def get(self, key: str | typing_extensions.Buffer, timeout: Timeout = 0) "
                   "-> ObjectView"),
           "The object, without a copy. Waits up to `timeout` for its put; looks once with 0. "
           "Raises NotFound, TimedOut, Superseded and others.")
      .def("get_many", &get_many, as_given("keys"), as_given("timeout") = 0,
           nb::sig("def get_many(self, keys: collections.abc.Iterable[str | "
                   "typing_extensions.Buffer], timeout: Timeout = 0) -> list[ObjectView | "
                   "BaseException]"),
           "One answer a key, in order: a view, or the exception that get() would raise. The "
           "deadline is common.")
      .def(
          "exists",
          [](PyStore& self, nb::handle key) {
            const std::string name = to_key(key);
            return unwrap(without_gil([&] { return self.store().exists(name); }));
          },
          as_given("key"),
          nb::sig("def exists(self, key: str | typing_extensions.Buffer) -> bool"));
}

void bind_upkeep(nb::class_<PyStore>& type) {
  type.def(
          "erase",
          [](PyStore& self, nb::handle key, nb::handle generation) {
            const std::string name = to_key(key);
            const uint64_t only = to_integer(generation, "generation", 0, UINT64_MAX);
            check(without_gil([&] { return self.store().erase(name, only); }));
          },
          as_given("key"), as_given("generation") = 0,
          nb::sig("def erase(self, key: str | typing_extensions.Buffer, generation: int = 0) -> "
                  "None"),
          "Also if there is none. With a generation, only that one is erased. Views stay.")
      .def(
          "expire",
          [](PyStore& self, nb::handle key, nb::handle ttl) {
            const std::string name = to_key(key);
            const Duration left = ttl.is_none() ? Duration(-1) : to_duration(ttl, "ttl");
            check(without_gil([&] { return self.store().expire(name, left); }));
          },
          as_given("key"), as_given("ttl"),
          nb::sig("def expire(self, key: str | typing_extensions.Buffer, ttl: Timeout | None) -> "
                  "None"),
          "The object goes `ttl` from now; None: never. Raises NotFound.")
      .def("usage", &usage, nb::sig("def usage(self) -> dict[str, int]"))
      .def(
          "check", [](PyStore& self) { check(without_gil([&] { return self.store().health(); })); },
          "Raises if operations fail just now. Does not wait for the store.")
      .def(
          "metrics_text",
          [](PyStore& self) { return without_gil([&] { return self.store().metrics_text(); }); },
          "All counters, in the text format of Prometheus.")
      .def_prop_ro("name", [](PyStore& self) { return self.store().options().arena.name; })
      .def("__repr__", [](PyStore& self) {
        const StoreOptions& options = self.store().options();
        return options.backend == StoreBackend::kShm
                   ? fmt::format("<stagelink.ObjectStore {}>", options.arena.name)
                   : fmt::format("<stagelink.ObjectStore at {}:{}>", options.yuanrong.host,
                                 options.yuanrong.port);
      });
}

void bind_store_closing(nb::class_<PyStore>& type) {
  type.def(
          "close",
          [](PyStore& self, nb::handle timeout) {
            const Duration limit = to_duration(timeout, "timeout");
            check(without_gil([&] { return self.store().close(limit); }));
          },
          as_given("timeout") = 5, nb::sig("def close(self, timeout: Timeout = 5) -> None"),
          "Ends what waits. Views stay valid. May be called again.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> typing_extensions.Self"))
      .def(
          "__exit__",
          [](PyStore& self, nb::handle type_, nb::handle, nb::handle) {
            const Status status =
                without_gil([&] { return self.store().close(std::chrono::seconds(5)); });
            if (type_.is_none()) check(status);  // Else the exception under way says more.
          },
          nb::arg("exc_type").none(), nb::arg("exc").none(), nb::arg("traceback").none(),
          nb::sig("def __exit__(self, exc_type: type[BaseException] | None, "
                  "exc: BaseException | None, traceback: types.TracebackType | None) -> None"));
}

}  // namespace

void bind_store(nb::module_& m) {
  bind_writer(m);
  bind_view(m);
  nb::class_<PyStore> type(
      m, "ObjectStore", nb::is_final(), nb::is_weak_referenceable(),
      "Sealed bytes under keys, shared by the processes that open the same store. A context "
      "manager "
      "that closes. All methods may run at the same time, and release the interpreter lock while "
      "they wait or copy.");
  type.def(
      "__init__",
      [](PyStore* self, nb::handle config, const nb::kwargs& options) {
        const StoreOptions resolved = store_options(config, options);
        new (self) PyStore(unwrap(without_gil([&] { return ObjectStore::open(resolved); })));
      },
      nb::arg("config") = nb::none(), nb::arg("options"), nb::sig(store_signature()),
      "Options come, in rising order of precedence, from defaults, section `store` of the file "
      "`config`, the environment (STAGELINK_STORE_...), and the keywords.");
  bind_data(type);
  bind_upkeep(type);
  bind_store_closing(type);
}

}  // namespace stagelink::bindings
