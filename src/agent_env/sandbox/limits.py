"""What one sandbox may use when its `agent-env.toml` says nothing, and what bounds our own work around it."""

from __future__ import annotations

DEFAULT_MEMORY = 2 << 30
"""bytes, swap included"""
DEFAULT_PIDS = 512
DEFAULT_CPUS = 2.0
LOG_BYTES = 8 << 20
"""of a sandbox's output, about as much is kept on disk"""
TMPFS_BYTES = 256 << 20
"""each writable folder of a read-only container; counts towards its memory"""
EXEC_GRACE = 10.0
"""seconds past an exec's own deadline until the sandbox is taken to be lost"""
API_TIMEOUT = 60
"""seconds for one answer of the Docker daemon"""
BUILD_TIMEOUT = 1800.0
"""seconds for building or pulling one image"""
