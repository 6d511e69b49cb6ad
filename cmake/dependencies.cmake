# Third-party code, each as one interface target. What is linked is linked statically, so that the
# command and the Python module need nothing at run time but the compiler's own libraries.

function(stagelink_require variable package)
  if(NOT ${variable})
    message(FATAL_ERROR "${package} is not installed. On Debian: apt-get install ${package}")
  endif()
endfunction()

# fmt: Debian ships it as a shared library only, so its one source file is compiled here
# (header-only use would add three seconds to every file that formats a message).
find_path(STAGELINK_FMT_DIR fmt/format.h)
stagelink_require(STAGELINK_FMT_DIR libfmt-dev)
file(STRINGS ${STAGELINK_FMT_DIR}/fmt/core.h fmt_version REGEX "^#define FMT_VERSION [0-9]+")
string(REGEX REPLACE "^#define FMT_VERSION ([0-9]+)[0-9][0-9][0-9][0-9]$" "\\1" fmt_major
  "${fmt_version}")
if(fmt_major EQUAL 9)
  add_library(stagelink_fmt STATIC ${PROJECT_SOURCE_DIR}/cmake/fmt_instance.cc)
  target_include_directories(stagelink_fmt SYSTEM PUBLIC ${STAGELINK_FMT_DIR})
  set_target_properties(stagelink_fmt PROPERTIES CXX_CLANG_TIDY "")
else()
  add_library(stagelink_fmt INTERFACE)
  target_include_directories(stagelink_fmt SYSTEM INTERFACE ${STAGELINK_FMT_DIR})
  target_compile_definitions(stagelink_fmt INTERFACE FMT_HEADER_ONLY=1)
endif()

# libyaml: Debian's archive is position independent and goes into the Python module as it is.
# A cross build (make aarch64) compiles against the header and links nothing.
find_path(STAGELINK_YAML_DIR yaml.h)
stagelink_require(STAGELINK_YAML_DIR libyaml-dev)
add_library(stagelink_yaml INTERFACE)
target_include_directories(stagelink_yaml SYSTEM INTERFACE ${STAGELINK_YAML_DIR})
if(NOT CMAKE_CROSSCOMPILING)
  find_library(STAGELINK_YAML_LIBRARY NAMES libyaml.a yaml)
  stagelink_require(STAGELINK_YAML_LIBRARY libyaml-dev)
  target_link_libraries(stagelink_yaml INTERFACE ${STAGELINK_YAML_LIBRARY})
endif()

# libsodium: HMAC-SHA-256, wiped and locked memory. The archive is position independent too.
find_path(STAGELINK_SODIUM_DIR sodium.h)
stagelink_require(STAGELINK_SODIUM_DIR libsodium-dev)
add_library(stagelink_sodium INTERFACE)
target_include_directories(stagelink_sodium SYSTEM INTERFACE ${STAGELINK_SODIUM_DIR})
if(NOT CMAKE_CROSSCOMPILING)
  find_library(STAGELINK_SODIUM_LIBRARY NAMES libsodium.a sodium)
  stagelink_require(STAGELINK_SODIUM_LIBRARY libsodium-dev)
  target_link_libraries(stagelink_sodium INTERFACE ${STAGELINK_SODIUM_LIBRARY})
endif()

# xxHash: its header alone, compiled into the files that use it.
find_path(STAGELINK_XXHASH_DIR xxhash.h)
stagelink_require(STAGELINK_XXHASH_DIR libxxhash-dev)
add_library(stagelink_xxhash INTERFACE)
target_include_directories(stagelink_xxhash SYSTEM INTERFACE ${STAGELINK_XXHASH_DIR})

find_path(STAGELINK_JSON_DIR nlohmann/json.hpp)
stagelink_require(STAGELINK_JSON_DIR nlohmann-json3-dev)
add_library(stagelink_json INTERFACE)
target_include_directories(stagelink_json SYSTEM INTERFACE ${STAGELINK_JSON_DIR})

# msgpack: its headers alone, and without Boost.
find_path(STAGELINK_MSGPACK_DIR msgpack.hpp)
stagelink_require(STAGELINK_MSGPACK_DIR libmsgpack-cxx-dev)
add_library(stagelink_msgpack INTERFACE)
target_include_directories(stagelink_msgpack SYSTEM INTERFACE ${STAGELINK_MSGPACK_DIR})
target_compile_definitions(stagelink_msgpack INTERFACE MSGPACK_NO_BOOST)

# ZeroMQ: the header only. The library is loaded by name when it is first used.
find_path(STAGELINK_ZMQ_DIR zmq.h)
stagelink_require(STAGELINK_ZMQ_DIR libzmq3-dev)
add_library(stagelink_zmq_headers INTERFACE)
target_include_directories(stagelink_zmq_headers SYSTEM INTERFACE ${STAGELINK_ZMQ_DIR})

find_path(STAGELINK_CLI11_DIR CLI/CLI.hpp)
stagelink_require(STAGELINK_CLI11_DIR libcli11-dev)
add_library(stagelink_cli11 INTERFACE)
target_include_directories(stagelink_cli11 SYSTEM INTERFACE ${STAGELINK_CLI11_DIR})
