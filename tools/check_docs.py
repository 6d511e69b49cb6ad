#!/usr/bin/env python3
"""Check that the documentation speaks of things that exist.

Links and paths in Markdown files, the reasons in docs/architecture.md, and the test names in
tests/cases.md. Prints one line a finding; exits 1 if there is any.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent

LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
CODE_PATH = re.compile(
    r"`((?:src|include|tests|tools|docs|bench|fuzz|cmake|examples|python)/[\w./-]+)`"
)
TEST_NAME = re.compile(r"`(\w+Test\.\w+|test_\w+\.py::\w+)`")
REASON_ROW = re.compile(r'\{Reason::k\w+, Code::k\w+, "(\w+)"\}')


def documents() -> list[pathlib.Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def link_findings(document: pathlib.Path) -> Iterator[str]:
    text = document.read_text()
    where = document.relative_to(ROOT)
    for target in LINK.findall(text):
        if "://" not in target and not (document.parent / target).exists():
            yield f"{where}: the link to {target} leads nowhere"
    for target in CODE_PATH.findall(text):
        if not (ROOT / target).exists():
            yield f"{where}: there is no {target}"


def reason_findings() -> Iterator[str]:
    page = (ROOT / "docs" / "architecture.md").read_text()
    _, _, table = page.partition("<!-- reasons")
    told = set(re.findall(r"`(\w+)`", table.split("\n\n\n")[0].partition("\n## ")[0]))
    real = set(REASON_ROW.findall((ROOT / "src" / "base" / "status.cc").read_text())) - {"ok"}
    for name in sorted(real - told):
        yield f"docs/architecture.md: the reason {name} is missing"


def known_tests() -> set[str]:
    names: set[str] = set()
    for path in (ROOT / "tests").rglob("*_test.cc"):
        for suite, case in re.findall(
            r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", path.read_text(), re.MULTILINE
        ):
            names.add(f"{suite}.{case}")
    for path in (ROOT / "tests").rglob("test_*.py"):
        for case in re.findall(r"^\s*def (test_\w+)", path.read_text(), re.MULTILINE):
            names.add(f"{path.name}::{case}")
    return names


def case_findings() -> Iterator[str]:
    cases = ROOT / "tests" / "cases.md"
    names = known_tests()
    for name in sorted(set(TEST_NAME.findall(cases.read_text()))):
        if name not in names:
            yield f"tests/cases.md: there is no test {name}"


def main() -> int:
    found = [finding for document in documents() for finding in link_findings(document)]
    found += reason_findings()
    found += case_findings()
    for line in found:
        print(line)
    print(f"check_docs: {len(documents())} pages, {len(found)} findings", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
