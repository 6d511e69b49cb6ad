"""Runs Stagelink and its peers on the same work and prints one table.

Each line is one library and block size: 4096 blocks (1024 of 64 KiB) are read as one batch from
another process of this host. The ratio is the library's median over Stagelink's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHAPES = ((256, 4096), (4096, 4096), (16384, 4096), (65536, 1024))
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TIMEOUT_S = 180
# Memory that no engine has allocated, on both sides.
PRIVATE = ("--memory", "private", "--target-memory", "private")
TCP = ("env", "UCX_TLS=tcp")

Row = dict[str, Any]


@dataclass(frozen=True)
class Contender:
    name: str
    command: tuple[str, ...]

    def measure(self, block: int, blocks: int, repetitions: int) -> Row | str:
        """The row, or the words that say why there is none."""
        sizes = ["--block", str(block), "--blocks", str(blocks), "--repetitions", str(repetitions)]
        command = [*self.command, *sizes, "--json"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines()
            return lines[-1] if lines else f"exit status {done.returncode}"
        row: Row = json.loads(done.stdout)
        return {"name": self.name, **row}


def contenders(stagelink: Path, peers: Path) -> list[Contender]:
    python = str(peers / "bin" / "python")
    engine = (str(stagelink), "bench", "engine")
    return [
        Contender("stagelink shm", (*engine, "--transport", "shm")),
        Contender("stagelink cma", (*engine, "--transport", "cma", *PRIVATE)),
        Contender("stagelink unix", (*engine, "--transport", "unix", *PRIVATE)),
        Contender("stagelink tcp", (*engine, "--transport", "tcp", *PRIVATE)),
        Contender("nixl", (python, str(HERE / "peers" / "nixl_peer.py"))),
        Contender("nixl tcp", (*TCP, python, str(HERE / "peers" / "nixl_peer.py"))),
        Contender("mooncake", (python, str(HERE / "peers" / "mooncake_peer.py"))),
        Contender("ucx", (str(peers / "ucx_peer"),)),
        Contender("ucx tcp", (*TCP, str(peers / "ucx_peer"))),
        Contender("ucx debian", (str(peers / "ucx113_peer"),)),
    ]


def measure_all(entries: list[Contender], repetitions: int) -> list[Row]:
    rows: list[Row] = []
    for block, blocks in SHAPES:
        ours: float | None = None
        for entry in entries:
            print(f"measuring {entry.name}, {blocks} x {block} B", file=sys.stderr)
            row = entry.measure(block, blocks, repetitions)
            if isinstance(row, str):
                print(f"left out: {entry.name}, {blocks} x {block} B: {row}", file=sys.stderr)
                continue
            ours = row["p50_us"] if ours is None else ours
            row["ratio"] = row["p50_us"] / ours
            rows.append(row)
    return rows


def print_rows(rows: list[Row]) -> None:
    print(f"{'library':<16}{'work':>14}{'p50 ms':>10}{'p99 ms':>10}{'GB/s':>8}{'ratio':>9}")
    for row in rows:
        work = f"{row['blocks']} x {row['block_bytes']}"
        p50, p99 = row["p50_us"] / 1e3, row["p99_us"] / 1e3
        name = row["name"] if row.get("quiet", True) else row["name"] + " *"
        print(
            f"{name:<16}{work:>14}{p50:>10.3f}{p99:>10.3f}{row['gb_per_s']:>8.2f}"
            f"{row['ratio']:>8.2f}x"
        )
    print("* the threads of the library waited for a core: all repetitions were kept")


def print_suite(path: Path) -> None:
    print(f"{'case':<24}{'value':>12} {'unit':<6}{'to reach':>14}  holds")
    for row in json.loads(path.read_text()):
        target = f"{row['relation']} {row['target']:.3f}"
        holds = "yes" if row["holds"] else "no"
        print(f"{row['case']:<24}{row['value']:>12.3f} {row['unit']:<6}{target:>14}  {holds}")
    print()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stagelink", type=Path, default=ROOT / "build/release/stagelink")
    parser.add_argument("--peers", type=Path, default=ROOT / "build/peers-venv")
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument(
        "--suite", type=Path, action="append", default=[],
        help="rows of `bench suite` to print first; may be given again",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    args = parser.parse_args()
    for suite in args.suite:
        print_suite(suite)
    rows = measure_all(contenders(args.stagelink, args.peers), args.repetitions)
    print_rows(rows)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
