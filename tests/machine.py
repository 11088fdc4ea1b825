"""What tests ask of the machine, and take from it."""

import contextlib
import os
import resource

import pytest


@contextlib.contextmanager
def room(size):
    """Files can have so many bytes, as if the disk were full then."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def anonymous_mib():
    """Memory of this process that is in no file, which the system could write to its file."""
    if not os.path.exists("/proc/self/status"):
        pytest.skip("reads /proc")
    with open("/proc/self/status") as file:
        [line] = [line for line in file if line.startswith("RssAnon")]
    return int(line.split()[1]) / 1024
