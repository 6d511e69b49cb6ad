#pragma once

#include <string>

#include <nanobind/nanobind.h>

#include "bindings/convert/python_memory.h"

namespace stagelink::bindings {

// The memory of an object whose bytes are copied, from it or to it, in the order of its elements.
// Raises InvalidArgument (not_contiguous) for one in another order, Fortran's too, which a
// registration takes.
PythonMemory memory_in_order(nanobind::handle object);
// Raises Permission (read_only) besides.
PythonMemory writable_in_order(nanobind::handle object, const std::string& name);

// The type of an object's elements in its own words: "float32" of torch and of NumPy, ">f4" for the
// other byte order. Empty for bytes that are of no type: uint8, and (address, nbytes).
std::string element_type(nanobind::handle object);

// Raises InvalidArgument where elements of an object are of another type than is said.
void require_element_type(nanobind::handle object, const std::string& said, const char* name);

}  // namespace stagelink::bindings
