#!/usr/bin/env bash
# Usage: tools/setup.sh PROFILE...     with PROFILE in: build test load lint aarch64
#
# Makes sure that the Debian packages a profile needs are there: looks for the command or the file
# that is needed, and installs what is missing with apt-get when run as root. Otherwise it prints
# the command to run and fails. Costs a few milliseconds when nothing is missing.
set -euo pipefail

missing=()

# need PACKAGE command NAME | need PACKAGE file PATH...
need() {
  local package=$1 kind=$2
  shift 2
  if [ "$kind" = command ]; then
    command -v "$1" >/dev/null 2>&1 && return
  else
    local path
    for path in "$@"; do
      [ -e "$path" ] && return
    done
  fi
  missing+=("$package")
}

need_python_module() {
  python3 -c "import $2" >/dev/null 2>&1 || missing+=("$1")
}

profile_build() {
  command -v "${CXX:-c++}" >/dev/null 2>&1 || missing+=(g++)
  need make command make
  need cmake command cmake
  need ninja-build command ninja
  need libfmt-dev file /usr/include/fmt/format.h /usr/local/include/fmt/format.h
  need libyaml-dev file /usr/include/yaml.h /usr/local/include/yaml.h
  need nlohmann-json3-dev file /usr/include/nlohmann/json.hpp /usr/local/include/nlohmann/json.hpp
  need libsodium-dev file /usr/include/sodium.h /usr/local/include/sodium.h
  need libxxhash-dev file /usr/include/xxhash.h /usr/local/include/xxhash.h
  need libmsgpack-cxx-dev file /usr/include/msgpack.hpp /usr/local/include/msgpack.hpp
  need libzmq3-dev file /usr/include/zmq.h /usr/local/include/zmq.h
  need libcli11-dev file /usr/include/CLI/CLI.hpp /usr/local/include/CLI/CLI.hpp
}

profile_test() {
  profile_build
  need ccache command ccache
  need libgtest-dev file /usr/include/gtest/gtest.h
  need libgmock-dev file /usr/include/gmock/gmock.h
  need clang command clang++
  need llvm command llvm-symbolizer
  if command -v clang++ >/dev/null 2>&1; then
    local runtime
    runtime=$(clang++ -print-runtime-dir 2>/dev/null || true)
    need libclang-rt-dev file "$runtime"/libclang_rt.fuzzer-x86_64.a \
      "$runtime"/libclang_rt.fuzzer.a "$runtime"/libclang_rt.fuzzer-aarch64.a
  else
    missing+=(libclang-rt-dev)
  fi
  need python3 command python3
  need etcd-server command etcd
  need iproute2 command ip
  need_python_module python3-venv ensurepip
  need python3-dev file \
    "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))' 2>/dev/null)/Python.h"
}

profile_load() {
  need wrk command wrk
}

profile_lint() {
  profile_test
  need clang-format command clang-format
  need clang-tidy command clang-tidy
}

profile_aarch64() {
  profile_build
  need g++-aarch64-linux-gnu command aarch64-linux-gnu-g++
}

for profile in "$@"; do
  case $profile in
    build | test | load | lint | aarch64) "profile_$profile" ;;
    *)
      echo "setup: no profile is called '$profile' (build test load lint aarch64)" >&2
      exit 2
      ;;
  esac
done

[ ${#missing[@]} -eq 0 ] && exit 0
mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)

if ! command -v apt-get >/dev/null 2>&1; then
  echo "setup: please install what Debian calls: ${missing[*]}" >&2
  exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
  echo "setup: packages are missing; please run:" >&2
  echo "  sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
  exit 1
fi
echo "setup: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
install=(apt-get install -y -qq --no-install-recommends "${missing[@]}")
"${install[@]}" >/dev/null 2>&1 || { apt-get update -qq && "${install[@]}" >/dev/null; }
