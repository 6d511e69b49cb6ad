"""The examples run as the documentation says."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_two_processes_prints_what_its_readme_says() -> None:
    script = EXAMPLES / "two_processes.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    readme = (EXAMPLES / "README.md").read_text()
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert f"    {line}\n" in readme


def test_the_first_example_is_short() -> None:
    assert len((EXAMPLES / "two_processes.py").read_text().splitlines()) < 40


def test_the_code_of_the_documentation_runs() -> None:
    page = (EXAMPLES.parent / "docs" / "python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), {})
