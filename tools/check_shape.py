#!/usr/bin/env python3
"""Check the shape of the tree: who includes whom, file and folder sizes, headers without `using`.

Prints one line a finding; exits 1 if there is any. The order of the layers is that of the
stagelink_layer() calls in CMakeLists.txt; `bindings`, the Python module, stands before `cli`.
"""

from __future__ import annotations

import pathlib
import re
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILE_LINES_MAX = 500
FOLDER_ENTRIES_MAX = 15  # x.h, x.cc and x_test.cc count as one.
CODE_FOLDERS = ("include", "src", "tests", "bench", "fuzz", "examples", "python", "tools")
CODE_SUFFIXES = {".h", ".cc", ".py"}

# Public headers that only the engine and what stands above it may include. Every other public
# header holds values and belongs to the lowest layer.
ENGINE_HEADERS = {"engine.h", "peer.h", "session.h", "transfer.h"}

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
USING_NAMESPACE = re.compile(r"^\s*using\s+namespace\s+(?!std::\w*literals)", re.MULTILINE)


def layers() -> list[str]:
    text = (ROOT / "CMakeLists.txt").read_text()
    names = re.findall(r"^stagelink_layer\((\w+)", text, re.MULTILINE)
    names.insert(names.index("cli"), "bindings")
    return names


def code_files() -> list[pathlib.Path]:
    return sorted(
        path
        for folder in CODE_FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in CODE_SUFFIXES and path.is_file() and "__pycache__" not in path.parts
    )


def layer_of_include(target: str) -> str:
    head, _, rest = target.partition("/")
    if head == "stagelink":
        return "engine" if rest in ENGINE_HEADERS else "base"
    return head


def include_findings(path: pathlib.Path, text: str, order: list[str]) -> Iterator[str]:
    relative = path.relative_to(ROOT)
    if relative.parts[0] == "include":
        layer = layer_of_include(f"stagelink/{path.name}")
    else:
        layer = relative.parts[1]
    if layer not in order:
        yield f"{relative}: no layer is called {layer}"
        return
    for target in INCLUDE.findall(text):
        other = layer_of_include(target)
        if other not in order:
            yield f'{relative}: "{target}" is not written from the root of src/ or include/'
        elif order.index(other) > order.index(layer):
            yield f"{relative}: layer {layer} may not include {target} (layer {other})"


def folder_findings() -> Iterator[str]:
    folders = {path.parent for path in code_files()}
    for folder in sorted(folders):
        names = {
            re.sub(r"(_test)?\.(h|cc|py)$", "", entry.name)
            for entry in folder.iterdir()
            if entry.name not in ("__pycache__", "__init__.py", "CMakeLists.txt")
        }
        if len(names) > FOLDER_ENTRIES_MAX:
            where = folder.relative_to(ROOT)
            yield f"{where}: {len(names)} entries, the limit is {FOLDER_ENTRIES_MAX}"


def findings() -> Iterator[str]:
    order = layers()
    for path in code_files():
        text = path.read_text()
        relative = path.relative_to(ROOT)
        lines = text.count("\n")
        if lines > FILE_LINES_MAX:
            yield f"{relative}: {lines} lines, the limit is {FILE_LINES_MAX}"
        if path.suffix == ".h" and USING_NAMESPACE.search(text):
            yield f"{relative}: a header says `using namespace`"
        if path.suffix == ".h" and "#pragma once" not in text:
            yield f"{relative}: a header without #pragma once"
        if relative.parts[0] in ("include", "src") and path.suffix != ".py":
            yield from include_findings(path, text, order)
    yield from folder_findings()


def main() -> int:
    found = list(findings())
    for line in found:
        print(line)
    print(f"check_shape: {len(code_files())} files, {len(found)} findings", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
