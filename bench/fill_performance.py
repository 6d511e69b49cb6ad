"""Writes the tables of docs/performance.md from what the benchmarks printed.

build/release/stagelink bench suite engine --json > build/bench/engine_suite.json
build/release/stagelink bench suite network --json > build/bench/network_suite.json
build/release/stagelink bench suite moriio --json > build/bench/moriio_suite.json
build/release/stagelink bench suite store --json > build/bench/store_suite.json
build/release/stagelink bench suite pull --json > build/bench/pull_suite.json
build/release/stagelink bench suite encoder-cache --json > build/bench/encoder_cache_suite.json
python3 bench/compare.py --json build/bench/peers.json
python3 bench/fill_performance.py
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "build" / "bench"

Row = dict[str, Any]


def figure(value: float) -> str:
    """Three digits that count."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def suite_table(rows: list[Row]) -> str:
    lines = ["| case | measured | to reach | holds |", "|---|---|---|---|"]
    for row in rows:
        unit = "" if row["unit"] == "x" else " " + row["unit"]
        sign = "≥" if row["relation"] == ">=" else "≤"
        holds = "yes" if row["holds"] else "**no**"
        if not row["holds"] and "limit" in row:
            holds += f"; streaming memcpy: {figure(row['limit'])} ×"
        measured = figure(row["value"]) + (" ×" if row["unit"] == "x" else unit)
        target = f"{sign} {figure(row['target'])}" + (" ×" if row["unit"] == "x" else unit)
        lines.append(f"| `{row['case']}` | {measured} | {target} | {holds} |")
    return "\n".join(lines)


def peers_table(rows: list[Row]) -> str:
    lines = ["| library | work | p50 ms | p99 ms | GB/s | ratio |", "|---|---|---|---|---|---|"]
    for row in rows:
        name = row["name"] + ("" if row.get("quiet", True) else " *")
        version = f" {row['version']}" if "version" in row else ""
        lines.append(
            f"| {name}{version} | {row['blocks']} × {row['block_bytes']} B "
            f"| {row['p50_us'] / 1e3:.2f} | {row['p99_us'] / 1e3:.2f} "
            f"| {row['gb_per_s']:.2f} | {figure(row['ratio'])} × |"
        )
    return "\n".join(lines)


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def machine_line() -> str:
    return f"{processor()}, {os.cpu_count()} cores, Linux {platform.release()}."


def replace(text: str, name: str, content: str) -> str:
    begin, end = f"<!-- {name} -->\n", f"<!-- end {name} -->"
    head, rest = text.split(begin, 1)
    tail = rest.split(end, 1)[1]
    return f"{head}{begin}{content}\n{end}{tail}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", type=Path, default=RESULTS / "engine_suite.json")
    parser.add_argument("--network", type=Path, default=RESULTS / "network_suite.json")
    parser.add_argument("--moriio", type=Path, default=RESULTS / "moriio_suite.json")
    parser.add_argument("--store", type=Path, default=RESULTS / "store_suite.json")
    parser.add_argument("--pull", type=Path, default=RESULTS / "pull_suite.json")
    parser.add_argument("--encoder-cache", type=Path, default=RESULTS / "encoder_cache_suite.json")
    parser.add_argument("--peers", type=Path, default=RESULTS / "peers.json")
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args()
    text = args.page.read_text()
    text = replace(text, "machine", machine_line())
    for name, path, table in (
        ("suite", args.suite, suite_table),
        ("network", args.network, suite_table),
        ("moriio", args.moriio, suite_table),
        ("store", args.store, suite_table),
        ("pull", args.pull, suite_table),
        ("encoder-cache", args.encoder_cache, suite_table),
        ("peers", args.peers, peers_table),
    ):
        if path.exists():
            text = replace(text, name, table(json.loads(path.read_text())))
    args.page.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
