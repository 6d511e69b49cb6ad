"""``python -m stagelink.proxy``."""

import sys

MISSING = """\
error: the proxy needs the Python package {name}, which is not installed here ({python}).
Install the extra: pip install 'stagelink[proxy]'
"""


def main() -> int:
    try:
        from .run import main as run
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in ("aiohttp", "prometheus_client", "zmq"):
            raise
        sys.stderr.write(MISSING.format(name=name, python=sys.executable))
        return 1
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
