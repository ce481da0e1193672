"""``python -m hloinspect``: the same as the ``hloinspect`` command."""

from __future__ import annotations

from hloinspect.cli import main

if __name__ == "__main__":
    main()
