#!/usr/bin/env bash
# clang-format and clang-tidy over the project's C++. Usage: tools/lint_cpp.sh [format|tidy|rewrite]...
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=$(nproc)

mapfile -t sources < <(
  find include src tests fuzz bench examples cmake -name '*.cc' -o -name '*.h' | sort
)

check_format() {
  printf '%s\0' "${sources[@]}" | xargs -0 clang-format --dry-run -Werror
}

check_rewrite() {
  printf '%s\0' "${sources[@]}" | xargs -0 clang-format -i
}

check_tidy() {
  cmake --preset tidy --log-level=WARNING -DSTAGELINK_TIDY=OFF -DSTAGELINK_FUZZ=ON
  cmake --build --preset tidy -j "$jobs" --target header_check -- --quiet
  find src tests/unit tests/integration tests/support -name '*.cc' \
    ! -path 'src/bindings/*' -print0 2>/dev/null |
    xargs -0 -n 4 -P "$jobs" clang-tidy -p build/tidy --quiet
}

[ $# -eq 0 ] && set -- format tidy
for check in "$@"; do "check_$check"; done
